// Fine-tuned models: classes, numbers, endings, tags, relations and answers.

const HUES = 6; // colors of labels; more labels use them again

/** Return the fields of a task that reads a text or a pair: {fields, controls, input}. */
function textFields(card) {
  const paired = card.paired !== false;
  const [text, pair] = [area(paired ? 2 : 4), area(2)];
  const hint = card.paired === null ? "Leave it empty for a single text." : "";
  return {
    fields: paired ? [field("First text", text), field("Second text", pair, hint)] : [field("Text", text)],
    controls: { text, pair },
    input: () => (paired && (card.paired || pair.value) ? [text.value, pair.value] : text.value),
  };
}

const predicts = (kind) => (card) => card.operations.includes("predict") && card.task === kind;

const classifyTask = {
  id: "classify",
  name: "Classify",
  path: "v1/predict",
  about: (card) => `The model chooses one of ${counted(card.labels.length, "class").replace(/classs$/, "classes")}.`,
  offered: predicts("classify"),
  build(card) {
    const { fields, controls, input } = textFields(card);
    return {
      fields,
      controls,
      body: () => ({ inputs: [input()] }),
      show({ predictions: [{ label, probabilities }] }) {
        const entries = Object.entries(probabilities).sort(([, a], [, b]) => b - a);
        const shownEntries = entries.map(([name, share]) => ({ label: name, share }));
        return [html("p", { class: "answer", dir: "auto" }, label), ...fewBars(shownEntries, 12, null, 0)];
      },
      said: ({ predictions: [{ label, probabilities }] }) => `${label}, ${percent(probabilities[label])}`,
    };
  },
};

const multiLabelTask = {
  id: "multi_label",
  name: "Label",
  path: "v1/predict",
  about: (card) => `The model predicts any number of ${counted(card.labels.length, "label")}.`,
  offered: predicts("multi_label"),
  build(card) {
    const { fields, controls, input } = textFields(card);
    return {
      fields,
      controls,
      body: () => ({ inputs: [input()] }),
      show({ predictions: [{ labels, probabilities }] }) {
        const entries = Object.entries(probabilities).sort(([, a], [, b]) => b - a);
        const shownEntries = entries.map(([label, share]) => ({ label: labels.includes(label) ? `✓ ${label}` : label, share }));
        const answer = html("p", { class: labels.length ? "answer" : "answer none", dir: "auto" }, labels.join(", ") || "No label");
        return [answer, ...fewBars(shownEntries, 12, null)];
      },
      said: ({ predictions: [{ labels }] }) => labels.join(", ") || "no label",
    };
  },
};

const regressTask = {
  id: "regress",
  name: "Predict a number",
  path: "v1/predict",
  about: () => "The model predicts a number, in the units of its training data.",
  offered: predicts("regress"),
  build(card) {
    const { fields, controls, input } = textFields(card);
    return {
      fields,
      controls,
      body: () => ({ inputs: [input()] }),
      show: ({ predictions: [{ score }] }) => [html("p", { class: "answer number" }, decimal(score, 3))],
      said: ({ predictions: [{ score }] }) => `predicted number ${decimal(score, 3)}`,
    };
  },
};

const chooseTask = {
  id: "choose",
  name: "Choose an ending",
  path: "v1/predict",
  about: () => "The model chooses the ending that fits best.",
  offered: predicts("choose"),
  build() {
    const [context, endings] = [area(2), area(5)];
    return {
      fields: [field("Beginning", context), field("Endings", endings, "One per line, at least two.")],
      controls: { context, endings },
      body: () => ({ inputs: [[context.value, ...linesOf(endings.value)]] }),
      show({ predictions: [{ choice, probabilities }] }, body) {
        const [beginning, ...given] = body.inputs[0];
        const story = [`${beginning} `, html("mark", { class: "found" }, given[choice])];
        const entries = given.map((label, number) => ({ label, share: probabilities[number] }));
        const parts = bars(entries, null, choice);
        parts.classList.add("wide");
        return [html("p", { class: "text", dir: "auto" }, story), parts];
      },
      said: ({ predictions: [{ choice, probabilities }] }) => `ending ${choice + 1}, ${percent(probabilities[choice])}`,
    };
  },
};

const spanTask = {
  id: "span",
  name: "Answer a question",
  path: "v1/predict",
  about: () => "The model marks the answer in a passage.",
  offered: predicts("span"),
  build() {
    const [question, passage] = [line(), area(8)];
    return {
      fields: [field("Question", question), field("Passage", passage)],
      controls: { question, passage },
      body: () => ({ inputs: [[question.value, passage.value]] }),
      show({ predictions: [found] }, body) {
        const [, context] = body.inputs[0];
        const entries = found.guesses.map((each) => ({ label: each.text || "no answer", share: each.probability }));
        const first = found.guesses.findIndex((each) => each.start === found.start && each.text === found.answer);
        const place = html("div");
        const choose = (number, focused = true) => {
          const guess = found.guesses[number] ?? found;
          place.replaceChildren(markedText(context, guess.start, guess.end), ...fewBars(entries, 5, choose, number));
          for (const list of place.querySelectorAll(".bars")) list.classList.add("wide"); // an answer may be long
          if (focused) place.querySelector("[aria-pressed=true]")?.focus();
        };
        choose(first, false);
        const answer = html("p", { class: found.answer ? "answer" : "answer none", dir: "auto" }, found.answer || "No answer in the passage");
        return [answer, place];
      },
      said: ({ predictions: [found] }) => (found.answer ? `${found.answer}, ${percent(found.probability)}` : "no answer"),
    };
  },
};

/**
 * Group tagged words into spans. Tags such as B-PER begin a span, and I-PER continues it; other tags, except O, are spans of
 * one word. Returns [{type, words, probability}]; `type` is "" for words without a tag.
 */
function spansOf({ tokens, tags, probabilities }) {
  const spans = [];
  tags.forEach((tag, number) => {
    const [, prefix, type] = /^([BIESLU])[-_](.+)$/.exec(tag) ?? [null, "", tag === "O" ? "" : tag];
    const last = spans.at(-1);
    if (last && "IEL".includes(prefix || "?") && last.open && last.type === type) {
      last.words.push(tokens[number]);
      last.probability = Math.min(last.probability, probabilities[number]);
    } else spans.push({ type, words: [tokens[number]], probability: probabilities[number], open: prefix !== "" });
  });
  return spans;
}

/** Return the types of the labels of a tagger, in order, without the prefixes of spans. */
const typesOf = (labels) => [...new Set(labels.filter((label) => label !== "O").map((label) => label.replace(/^[BIESLU][-_]/, "")))];

const UNSURE = 0.5; // probability below which a span is drawn dashed
const UNBROKEN = 24; // characters of a word that stays on one line with its tag

/**
 * Return a tagged span. In a text whose every word may have a tag, the tag stands below the word. Elsewhere it follows the last
 * word, on the same line.
 */
function taggedSpan({ type, words, probability }, hue, below) {
  const label = html("span", { class: "tag" }, type);
  const classes = ["span", hue, below ? "below" : "", probability < UNSURE ? "unsure" : ""].join(" ").trim();
  const last = words.at(-1);
  const end = html("span", { class: last.length <= UNBROKEN ? "unbroken" : "" }, [`${last} `, label]);
  const parts = below ? [words.join(" "), label] : [...words.slice(0, -1).map((word) => `${word} `), end];
  return html("mark", { class: classes, title: `${type}, ${percent(probability)}` }, parts);
}

const tagTask = {
  id: "tag",
  name: "Tag words",
  path: "v1/predict",
  about: (card) => `The model labels every word with one of ${card.labels.length} tags. Spaces separate words.`,
  offered: predicts("tag"),
  build(card) {
    const text = area(4);
    const types = typesOf(card.labels);
    const below = !card.labels.includes("O"); // as for parts of speech
    return {
      fields: [field("Text", text, "Write a space between a word and its punctuation, as in the training data.")],
      controls: { text },
      body: () => ({ inputs: [text.value] }),
      show({ predictions: [found] }) {
        const spans = spansOf(found);
        const seen = types.filter((type) => spans.some((span) => span.type === type));
        const colored = types.length > HUES ? seen : types; // many tags share colors: better not those of one text
        const hue = (type) => `hue-${Math.max(colored.indexOf(type), 0) % HUES}`;
        const parts = spans.flatMap((span) => (span.type ? [taggedSpan(span, hue(span.type), below), " "] : [`${span.words.join(" ")} `]));
        const legend = seen.map((type) => {
          const count = spans.filter((span) => span.type === type).length;
          return html("li", { class: hue(type) }, [type, html("span", { class: "quiet" }, ` ${count}`)]);
        });
        if (spans.some((span) => span.type && span.probability < UNSURE)) {
          legend.push(html("li", { class: "quiet dashed" }, `dashed: probability below ${100 * UNSURE} %`));
        }
        const rows = found.tokens.map((token, i) => [token, found.tags[i], found.probabilities[i]]);
        const details = [html("summary", {}, "All words"), table(["Word", "Tag", "Probability"], rows, "Tags of all words")];
        const none = seen.length ? [] : [html("p", { class: "quiet" }, "No word has a tag other than O.")];
        const text = html("p", { class: `text tagged${below ? " all" : ""}`, dir: "auto" }, parts);
        return [text, html("ul", { class: "legend" }, legend), ...none, html("details", {}, details)];
      },
      said: ({ predictions: [found] }) => counted(spansOf(found).filter((span) => span.type).length, "tagged span"),
    };
  },
};

const relateTask = {
  id: "relate",
  name: "Relate two spans",
  path: "v1/predict",
  about: (card) => `The model predicts one of ${counted(card.labels.length, "relation")} between two spans of a text.`,
  offered: predicts("relate"),
  build() {
    const [text, first, second] = [area(4), line(), line()];
    const types = () => (first.value || second.value ? { e1_type: first.value, e2_type: second.value } : {});
    return {
      fields: [
        field("Text", text, "Mark the spans: <e1>Ada</e1> was born in <e2>London</e2>."),
        field("Type of e1", first, "Only for a model that was trained with types."),
        field("Type of e2", second),
      ],
      controls: { text, first, second },
      body: () => ({ inputs: [{ text: text.value, ...types() }] }),
      show({ predictions: [{ label, probabilities }] }, body) {
        const entries = Object.entries(probabilities).sort(([, a], [, b]) => b - a);
        const parts = body.inputs[0].text.split(/(<e[12]>.*?<\/e[12]>)/is).map((part) => {
          const [, number, span] = /^<e([12])>(.*)<\/e[12]>$/is.exec(part) ?? [];
          return number ? taggedSpan({ type: `e${number}`, words: [span], probability: 1 }, `hue-${number}`, false) : part;
        });
        const bars = fewBars(entries.map(([name, share]) => ({ label: name, share })), 12, null, 0);
        return [html("p", { class: "answer", dir: "auto" }, label), html("p", { class: "text tagged", dir: "auto" }, parts), ...bars];
      },
      said: ({ predictions: [{ label, probabilities }] }) => `${label}, ${percent(probabilities[label])}`,
    };
  },
};

const PREDICTIONS = [classifyTask, multiLabelTask, regressTask, spanTask, chooseTask, tagTask, relateTask]; // in the order of the page
