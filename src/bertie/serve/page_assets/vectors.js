// Vectors: sentences compared with each other, documents sorted for a query, and passages found in an index.

/** Return a heat map of cosines: a table, in which darker cells are more similar. */
function heatMap(texts, cosines) {
  const name = (number) => String(number + 1);
  const heads = texts.map((text, number) => html("th", { scope: "col", title: text }, name(number)));
  const rows = cosines.map((row, i) => {
    const cells = row.map((cosine, j) => {
      const style = `--share:${Math.max(0, cosine).toFixed(3)};--hue:var(--accent)`;
      return html("td", { style, title: `${name(i)} and ${name(j)}` }, decimal(cosine, 2));
    });
    return html("tr", {}, [html("th", { scope: "row" }, [numbered(name(i), texts[i])]), ...cells]);
  });
  const parts = [
    html("caption", { class: "hidden" }, "Cosines of all pairs of sentences"),
    html("thead", {}, [html("tr", {}, [html("td"), ...heads])]),
    html("tbody", {}, rows),
  ];
  const shape = texts.length > 12 ? "matrix many" : "matrix";
  const attributes = { class: "box", tabindex: 0, role: "region", "aria-label": "Cosines" };
  return scrolling(html("div", attributes, [html("table", { class: shape }, parts)]));
}

/** Return a text beside its number, which stays with the text's first line. */
const numbered = (number, text) => html("span", { class: "numbered" }, [html("b", {}, number), html("span", { dir: "auto" }, text)]);

/** Return the pair of different sentences with the largest cosine: [i, j, cosine]; null if there is none. */
function closest(cosines) {
  let best = null;
  cosines.forEach((row, i) => row.forEach((cosine, j) => j > i && (!best || cosine > best[2]) && (best = [i, j, cosine])));
  return best;
}

const compareTask = {
  id: "similarity",
  name: "Compare sentences",
  path: "v1/similarity",
  about: (card) => `The model embeds each sentence as a vector of ${card.vector_width} numbers. Similar sentences have a cosine near 1.`,
  offered: (card) => card.operations.includes("similarity"),
  build() {
    const sentences = area(7);
    return {
      fields: [field("Sentences", sentences, "One per line.")],
      controls: { sentences },
      body: () => ({ texts: linesOf(sentences.value) }),
      show({ similarities }, { texts }) {
        const best = closest(similarities);
        const said = best ? `Most similar: ${best[0] + 1} and ${best[1] + 1}, with the cosine ${decimal(best[2], 2)}.` : "";
        return [html("p", { class: "note-line" }, said), heatMap(texts, similarities)];
      },
      said: ({ similarities }) => `compared ${counted(similarities.length, "sentence")}`,
      snippets: (model, { texts }) => ({ "OpenAI client": openaiSnippet(model, texts) }),
    };
  },
};

const readsPairs = (card) => card.paired !== false && ["classify", "regress"].includes(card.task);

const rerankTask = {
  id: "rerank",
  name: "Rerank documents",
  path: "v1/rerank",
  about: (card) =>
    readsPairs(card)
      ? "The model reads the query with each document, and sorts the documents by relevance."
      : "The model embeds query and documents, and sorts the documents by their cosine with the query.",
  offered: (card) => card.operations.includes("rerank"),
  build(card) {
    const [query, documents] = [line(), area(7)];
    const fields = [field("Query", query), field("Documents", documents, "One per line.")];
    const label = html("select", {}, [html("option", { value: "" }, "by its name")]);
    if (card.task === "classify" && card.paired) {
      for (const name of card.labels) label.append(html("option", { value: name }, name));
      fields.push(field("Class that means “relevant”", label));
    }
    return {
      fields,
      controls: { query, documents, label },
      body: () => ({
        query: query.value,
        documents: linesOf(documents.value),
        ...(label.value ? { label: label.value } : {}),
      }),
      show({ results }, body) {
        const scores = results.map((each) => each.relevance_score);
        const [low, high] = [Math.min(0, ...scores), Math.max(1, ...scores)];
        const entries = results.map(({ index, relevance_score: score }) => ({
          label: body.documents[index],
          share: (score - low) / (high - low),
          value: decimal(score, 3),
          title: `document ${index + 1}`,
        }));
        const list = bars(entries, null, 0);
        list.classList.add("wide", "ranked");
        return [list];
      },
      said: ({ results }) => `sorted ${counted(results.length, "document")}`,
    };
  },
};

/** Return a passage with its place in the ranking, its document, and the words of the query marked. */
function passageCard({ document, heading, text, score, marks }, number) {
  const characters = [...text]; // as Python counts them
  const parts = [];
  let end = 0;
  for (const [from, to] of marks) {
    parts.push(characters.slice(end, from).join(""), html("mark", { class: "found" }, characters.slice(from, to).join("")));
    end = to;
  }
  parts.push(characters.slice(end).join(""));
  return html("li", {}, [
    html("h4", { dir: "auto" }, [`${number + 1}. ${heading || document}`]),
    html("p", { class: "quiet" }, [heading ? `${document} · ` : "", `score ${decimal(score, 3)}`]),
    html("p", { class: "passage", dir: "auto" }, parts),
  ]);
}

const searchTask = {
  id: "search",
  name: "Search",
  path: "v1/search",
  about: () => "The model and BM25 search the index together: by meaning, and by the words of the query.",
  offered: (card) => card.operations.includes("search"),
  build() {
    const query = line();
    const count = html("select", {}, [5, 10, 20].map((number) => html("option", { value: number }, String(number))));
    return {
      fields: [field("Query", query), field("Passages", count)],
      controls: { query },
      body: () => ({ query: query.value, top_k: Number(count.value) }),
      show: ({ results }) => [html("ol", { class: "passages" }, results.map(passageCard))],
      said: ({ results }) => `found ${counted(results.length, "passage")}`,
    };
  },
};
