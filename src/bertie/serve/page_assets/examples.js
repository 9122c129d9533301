// Examples for each task: the values of its fields.

const PASSAGE =
  "The Eiffel Tower is a wrought-iron tower in Paris. The company of the engineer Gustave Eiffel built it from 1887 to 1889 " +
  "for the World's Fair. It is 330 metres tall, and was the tallest structure in the world until 1930.";

const SINGLE = [
  ["praise", { text: "A charming and often affecting journey." }],
  ["criticism", { text: "The plot is dull, and the film is far too long." }],
  ["complaint", { text: "I have been waiting for two weeks, and nobody answers." }],
];
const PAIRS = [
  ["same meaning", { text: "A man is playing a guitar.", pair: "Somebody makes music." }],
  ["two questions", { text: "How do I learn Python?", pair: "What is the best way to learn Python?" }],
  ["contradiction", { text: "The cat sleeps on the mat.", pair: "The cat is awake." }],
];

const QUESTIONS = [
  ["a date", { question: "When was the tower built?", passage: PASSAGE }],
  ["a person", { question: "Whose company built the tower?", passage: PASSAGE }],
  ["without an answer", { question: "Who painted the Mona Lisa?", passage: PASSAGE }],
];
const SEARCHES = [
  ["a question", { query: "How do I read a file line by line?" }],
  ["words", { query: "time zone" }],
];

/** Return the examples of a task for a model: one or two texts, unless it has some of its own below. */
const examplesOf = (task, card) => EXAMPLES[task.id]?.(card) ?? (card.paired ? PAIRS : SINGLE);

const EXAMPLES = {
  "fill-mask": (card) => [
    // Any text teaches these; facts, such as capitals, only some.
    ["one mask", { text: `This is a ${card.mask_token}.` }],
    ["two masks", { text: `It is not the ${card.mask_token} but the ${card.mask_token}.` }],
    ["a word in a list", { text: `There are the first, the ${card.mask_token} and the last.` }],
  ],
  regress: (card) => (card.paired === false ? SINGLE : PAIRS),
  choose: () => [
    [
      "kitchen",
      {
        context: "She filled the kettle with water, put it on the stove,",
        endings: "and waited until it boiled.\nand painted it green.\nand drove it to the airport.\nand it began to bark.",
      },
    ],
    ["music", { context: "The pianist sat down, and", endings: "began to play.\nate the piano.\nswam to the shore." }],
  ],
  span: () => QUESTIONS,
  tag: () => [
    ["news", { text: "On Friday, Angela Merkel visited the headquarters of Siemens in Munich." }],
    ["travel", { text: "We flew from New York to Tokyo with Japan Airlines and saw Mount Fuji." }],
  ],
  relate: () => [
    ["a part", { text: "The <e1>wheel</e1> of the <e2>bicycle</e2> is bent." }],
    ["a cause", { text: "A <e2>blackout</e2> of the whole city followed the <e1>storm</e1>." }],
  ],
  similarity: () => [
    [
      "everyday sentences",
      {
        sentences:
          "A man is playing a guitar.\nSomebody makes music on a guitar.\nThe stock market fell sharply.\n" +
          "Shares lost much of their value today.\nMy cat sleeps all day.",
      },
    ],
    ["questions", { sentences: "How do I reset my password?\nI forgot my password.\nWhere is my parcel?\nWhen will my order arrive?" }],
  ],
  rerank: () => [
    [
      "help center",
      {
        query: "How can I get my money back?",
        documents:
          "You can return a product within 30 days, and we refund the price.\nOur shops are open from 9 to 18 o'clock.\n" +
          "Refunds reach your account after about five days.\nWe deliver to all countries of Europe.",
      },
    ],
    ["cooking", { query: "pasta without meat", documents: "Spaghetti with tomatoes and basil\nBeef stew with carrots\nHow to repair a bicycle" }],
  ],
  search: () => SEARCHES,
  attention: () => [
    ["a pronoun", { text: "The cat sat on the mat because it was tired.", pair: "" }],
    ["two meanings", { text: "He sat on the bank of the river and counted the money of the bank.", pair: "" }],
    ["a pair", { text: "Who wrote Hamlet?", pair: "Shakespeare wrote Hamlet." }],
  ],
};
