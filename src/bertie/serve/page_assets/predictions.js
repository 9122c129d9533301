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

/** Return what turns a label and its probability into an entry of bars: a number by itself, which is no share of a whole. */
const labelEntry = (mark) => ([label, share]) => ({ label: mark + label, share, value: decimal(share, 2) });

/** Return a titled group of labels with their bars; nothing for no label. */
function labelBars(title, entries, group) {
  if (!entries.length) return [];
  const parts = [html("h4", {}, title), ...fewBars(entries, 12, null)];
  return [html("section", { class: `labels ${group}` }, parts)];
}

const multiLabelTask = {
  id: "multi_label",
  name: "Label",
  path: "v1/predict",
  about: (card) => `The model predicts any number of ${counted(card.labels.length, "label")}. Each has a probability of its own.`,
  offered: predicts("multi_label"),
  build(card) {
    const { fields, controls, input } = textFields(card);
    return {
      fields,
      controls,
      body: () => ({ inputs: [input()] }),
      show({ predictions: [{ labels, probabilities }] }) {
        const entries = Object.entries(probabilities).sort(([, a], [, b]) => b - a);
        const found = entries.filter(([label]) => labels.includes(label)).map(labelEntry("✓ "));
        const others = entries.filter(([label]) => !labels.includes(label)).map(labelEntry(""));
        const answer = html("p", { class: labels.length ? "answer" : "answer none", dir: "auto" }, labels.join(", ") || "No label");
        const note = html("p", { class: "hint" }, "Probability of each label by itself, 0 to 1. They need not sum to 1.");
        return [answer, note, ...labelBars("Predicted", found, "found"), ...labelBars("Not predicted", others, "others")];
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
      show: ({ predictions: [{ score, scores }] }) =>
        scores ? [table(["", "number"], Object.entries(scores).map(([name, value]) => [name, decimal(value, 3)]), "Predicted numbers")]
               : [html("p", { class: "answer number" }, decimal(score, 3))],
      said: ({ predictions: [{ score, scores }] }) => {
        const numbers = Object.entries(scores ?? { "predicted number": score });
        return numbers.map(([name, value]) => `${name} ${decimal(value, 3)}`).join(", ");
      },
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
 * Return the parts of a tagged text: [{type, text, probability}]; `type` is "" between entities, and for words without a tag.
 * The server counts the characters of entities as Unicode's code points.
 */
function spansOf({ tokens, tags, probabilities, entities }, text) {
  if (!entities) return tokens.map((token, i) => ({ type: tags[i] === "O" ? "" : tags[i], text: token, probability: probabilities[i] }));
  const characters = [...text];
  const spans = [];
  let last = 0;
  for (const { start, end, label, score } of entities) {
    spans.push({ type: "", text: characters.slice(last, start).join("") });
    spans.push({ type: label, text: characters.slice(start, end).join(""), probability: score });
    last = end;
  }
  return [...spans, { type: "", text: characters.slice(last).join("") }];
}

/** Return the types of the labels of a tagger, in order, without the letters of schemes. */
const typeOf = (label) => label.replace(/^[BIESLUM][-_]|[-_][BIESLUM]$/i, "");
const typesOf = (labels) => [...new Set(labels.filter((label) => !/^o$/i.test(label)).map(typeOf))];

const UNSURE = 0.5; // probability below which a span is drawn dashed
const UNBROKEN = 24; // characters of a word that stays on one line with its tag
const STRATEGIES = ["words", "first", "average", "max", "simple", "none"];

/**
 * Return a tagged span. In a text whose every word may have a tag, the tag stands below the word. Elsewhere it follows the last
 * word, on the same line.
 */
function taggedSpan({ type, text, probability }, hue, below) {
  const label = html("span", { class: "tag" }, type);
  const classes = ["span", hue, below ? "below" : "", probability < UNSURE ? "unsure" : ""].join(" ").trim();
  const [, before, last] = /^(.*?)(\S*)$/s.exec(text);
  const end = html("span", { class: last.length <= UNBROKEN ? "unbroken" : "" }, [`${last} `, label]);
  return html("mark", { class: classes, title: `${type}, ${percent(probability)}` }, below ? [text, label] : [before, end]);
}

const tagTask = {
  id: "tag",
  name: "Tag words",
  path: "v1/predict",
  about: (card) => `The model labels every word with one of ${card.labels.length} tags. A punctuation mark is a word.`,
  offered: predicts("tag"),
  build(card) {
    const text = area(4);
    const strategy = html("select", {}, STRATEGIES.map((name) => html("option", { value: name }, name)));
    const types = typesOf(card.labels);
    const hint = "How predictions for parts of words become entities: words as the model was trained.";
    return {
      fields: [field("Text", text), field("Aggregation strategy", strategy, hint)],
      controls: { text, strategy },
      body: () => ({ inputs: [text.value], ...(strategy.value === "words" ? {} : { aggregation_strategy: strategy.value }) }),
      show({ predictions: [found] }, body) {
        const below = !found.entities && !card.labels.includes("O"); // as for parts of speech
        const spans = spansOf(found, body.inputs[0]);
        const seen = [...new Set(spans.map((span) => span.type).filter(Boolean))];
        const colored = types.length > HUES || seen.some((type) => !types.includes(type)) ? seen : types; // many share colors
        const hue = (type) => `hue-${Math.max(colored.indexOf(type), 0) % HUES}`;
        const gap = found.entities ? "" : " ";
        const parts = spans.flatMap((span) => [span.type ? taggedSpan(span, hue(span.type), below) : span.text, gap]);
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
        const marked = html("p", { class: `text tagged${below ? " all" : ""}`, dir: "auto" }, parts);
        return [marked, html("ul", { class: "legend" }, legend), ...none, html("details", {}, details)];
      },
      said: ({ predictions: [found] }, body) => counted(spansOf(found, body.inputs[0]).filter((span) => span.type).length, "tagged span"),
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
          return number ? taggedSpan({ type: `e${number}`, text: span, probability: 1 }, `hue-${number}`, false) : part;
        });
        const bars = fewBars(entries.map(([name, share]) => ({ label: name, share })), 12, null, 0);
        return [html("p", { class: "answer", dir: "auto" }, label), html("p", { class: "text tagged", dir: "auto" }, parts), ...bars];
      },
      said: ({ predictions: [{ label, probabilities }] }) => `${label}, ${percent(probabilities[label])}`,
    };
  },
};

/** Return the rows of a table with a field of a prediction, and those in it: [[name, value], …]. */
const rowsOf = ([name, value]) =>
  value?.constructor === Object ? Object.entries(value).flatMap(([inner, part]) => rowsOf([`${name}: ${inner}`, part]))
                                : [[name, Array.isArray(value) ? JSON.stringify(value) : value ?? ""]];

const otherTask = {
  id: "predict",
  name: "Predict",
  path: "v1/predict",
  about: (card) => `The model predicts for the task ${card.task}.`,
  offered: (card) => card.operations.includes("predict") && !PREDICTIONS.some((each) => each !== otherTask && each.offered(card)),
  build(card) {
    const { fields, controls, input } = textFields(card);
    return {
      fields,
      controls,
      body: () => ({ inputs: [input()] }),
      show({ predictions: [found] }) {
        return [table(["", "value"], Object.entries(found).flatMap(rowsOf), "Fields of the prediction")];
      },
      said: ({ predictions: [found] }) => String(Object.values(found)[0]),
    };
  },
};

const PREDICTIONS = [classifyTask, multiLabelTask, regressTask, spanTask, chooseTask, tagTask, relateTask, otherTask]; // in the order of the page
