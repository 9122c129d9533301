// Attention in a text: all heads as small pictures, and one head as lines. The drawing is that of bertie inspect.

/** Return the numbers of an answer in the format that the drawing reads: bytes, 255 for the probability 1. */
function bytesOf(encoded) {
  const bytes = Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Uint8Array.from({ length: bytes.length / 4 }, (_, place) => Math.round(255 * view.getFloat32(4 * place, true)));
}

/** Return the head that attends most to tokens that are not special, not itself, and not beside it: [layer, head]. */
function busiestHead(sentence, layers, heads) {
  const size = sentence.tokens.length;
  const strength = (layer, head) => {
    const weight = attentionOf(sentence, layer, head, heads);
    let sum = 0;
    for (let from = 0; from < size; from++) {
      if (sentence.special.includes(from)) continue;
      for (let to = 0; to < size; to++) {
        if (Math.abs(to - from) > 1 && !sentence.special.includes(to)) sum += weight(from, to) ** 2;
      }
    }
    return sum;
  };
  let best = [0, 0, -1];
  for (let layer = 0; layer < layers; layer++) {
    for (let head = 0; head < heads; head++) {
      const found = strength(layer, head);
      if (found > best[2]) best = [layer, head, found];
    }
  }
  return best.slice(0, 2);
}

/** Return a list to choose from, with its label. It has room for a finger, which the cells of a drawing lack. */
function picker(label, names, choose) {
  const id = `field-${++fields}`;
  const select = html("select", { id }, names.map((name, number) => html("option", { value: number }, name)));
  select.addEventListener("change", () => choose(select.selectedIndex));
  return { select, element: html("span", { class: "picker" }, [html("label", { for: id }, label), select]) };
}

const drawing = (caption) => html("figure", {}, [html("figcaption", {}, caption), html("div", { class: "drawing" })]);

/** Return the view of an answer: its elements. */
function attentionView(answer) {
  const { shown, tokens, special: marks, attention } = answer;
  const sentence = { tokens: shown, pieces: tokens, special: marks, attention: bytesOf(attention) };
  const { layers, heads } = answer;
  const state = { selected: busiestHead(sentence, layers, heads), token: -1, special: true };
  const all = drawing("Rows are layers, columns are heads. Attention below 10 % is not drawn.");
  const one = drawing("Attention below 2 % is not drawn. Choose a token on the left to see its lines alone.");
  const numbers = Array.from({ length: layers * heads }, (_, index) => index);
  const headNames = numbers.map((index) => `${Math.floor(index / heads) + 1}.${(index % heads) + 1}`);
  const headPicker = picker("Head", headNames, (index) => selectHead(Math.floor(index / heads), index % heads));
  const tokenPicker = picker("Lines from", ["all tokens", ...sentence.tokens], (place) => selectToken(place - 1));
  const special = html("input", { type: "checkbox", checked: "" });
  const weights = () => {
    const weight = attentionOf(sentence, ...state.selected, heads);
    return state.special ? weight : withoutSpecial(sentence, weight);
  };
  const name = () => `${state.selected[0] + 1}.${state.selected[1] + 1}`;
  const drawOne = () => {
    tokenPicker.select.selectedIndex = state.token + 1;
    return drawHead(one, sentence, weights(), [], state.token, selectToken);
  };
  const draw = () => {
    headPicker.select.selectedIndex = state.selected[0] * heads + state.selected[1];
    drawHeads(all, sentence, layers, heads, state.special, state.selected, selectHead);
    drawOne();
  };
  const selectToken = (token) => {
    if (token === state.token) return;
    const focused = one.contains(document.activeElement);
    state.token = token;
    const rows = drawOne();
    if (focused && token >= 0) rows[token].focus({ preventScroll: true });
  };
  const selectHead = (layer, head) => {
    const focused = all.contains(document.activeElement);
    Object.assign(state, { selected: [layer, head], token: -1 });
    draw();
    if (focused) all.querySelector(".selected")?.focus({ preventScroll: true });
  };
  special.addEventListener("change", () => {
    state.special = special.checked;
    draw();
  });
  draw();
  exportable(all, () => "attention-all-heads");
  exportable(one, () => `attention-head-${name()}`, () => {
    const weight = attentionOf(sentence, ...state.selected, heads);
    const rows = sentence.tokens.map((token, from) => [token, ...sentence.tokens.map((_, to) => weight(from, to).toFixed(3))]);
    return [["", ...sentence.tokens], ...rows];
  });
  const choice = html("label", { class: "check" }, [special, " attention to special tokens"]);
  const pickers = html("div", { class: "pickers" }, [headPicker.element, tokenPicker.element]);
  const overview = html("section", {}, [html("h4", {}, "All heads"), all]);
  return [html("div", { class: "heads" }, [overview, html("section", {}, [pickers, one, choice])])];
}

const attentionTask = {
  id: "attention",
  name: "Look at attention",
  path: "v1/attention",
  about: (card) =>
    `Each of the ${card.layers * card.heads} attention heads decides how much every token attends to every other. The text may ` +
    `have ${card.attention_tokens} tokens.`,
  offered: (card) => card.operations.includes("attention"),
  build() {
    const [text, pair] = [area(2), area(2)];
    return {
      wide: true,
      fields: [field("Text", text), field("Second text", pair, "Optional.")],
      controls: { text, pair },
      body: () => ({ text: text.value, ...(pair.value ? { text_pair: pair.value } : {}) }),
      sent: (body) => ({ ...body, encoding_format: "base64" }), // a third of the size
      show: attentionView,
      said: (answer) => `${counted(answer.tokens.length, "token")}, ${counted(answer.layers * answer.heads, "head")}`,
    };
  },
};
