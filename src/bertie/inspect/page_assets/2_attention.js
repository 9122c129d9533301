// Attention in a sentence: one head as lines between tokens, and all heads as small pictures.

const ROW = 22; // height of a token
const WIDTH = 360;
const [LEFT, RIGHT] = [126, 234]; // ends of the lines
const FAINTEST = 0.02; // weaker lines are not drawn

/** Return the attention of a head in a sentence: a function of the attending and the attended token, 0 to 1. */
function attentionOf(sentence, layer, head, heads) {
  const size = sentence.tokens.length;
  const start = (layer * heads + head) * size * size;
  return (from, to) => sentence.attention[start + from * size + to] / 255;
}

/** Return the same without attention to special tokens, as far as it is drawn. */
const withoutSpecial = (sentence, weight) => (from, to) => (sentence.special.includes(to) ? 0 : weight(from, to));

function cut(token) {
  const characters = [...token];
  return characters.length > 15 ? `${characters.slice(0, 14).join("")}…` : token;
}

/**
 * Draw the attention of a head.
 * @param arcs Lines to compare with: pairs of tokens, the attending and the attended one.
 * @param chosen Number of the token whose lines alone are drawn; -1: all.
 * @param choose Receives the number of a token that is pointed at or focused, or -1.
 */
function drawHead(figure, sentence, weight, arcs, chosen, choose) {
  const { tokens } = sentence;
  const height = ROW * tokens.length + 34;
  const y = (token) => 28 + ROW * token + ROW / 2;
  const parts = [];
  for (let from = 0; from < tokens.length; from++) {
    if (chosen >= 0 && from !== chosen) continue;
    for (let to = 0; to < tokens.length; to++) {
      const value = weight(from, to);
      if (value < FAINTEST) continue;
      const ends = { x1: LEFT, y1: y(from), x2: RIGHT, y2: y(to) };
      parts.push(svg("line", { ...ends, class: "ray", style: `opacity:${value.toFixed(3)}` }));
    }
  }
  for (const [from, to] of arcs) {
    if (chosen < 0 || from === chosen) parts.push(svg("line", { x1: LEFT, y1: y(from), x2: RIGHT, y2: y(to), class: "gold-arc" }));
  }
  const names = tokens.map((token, number) => {
    const piece = sentence.pieces?.[number] ?? token;
    return piece === token ? token : `${token} (${piece})`; // what the model reads
  });
  const rows = tokens.map((token, number) => {
    const label = svg("text", { x: LEFT - 6, y: y(number) + 4, class: "token end" }, cut(token));
    const area = { x: 0, y: y(number) - ROW / 2, width: LEFT, height: ROW };
    const name = `attention from ${names[number]}`;
    const group = svg("g", { class: number === chosen ? "row chosen" : "row", role: "button", "aria-label": name });
    group.append(svg("rect", area), svg("title", {}, names[number]), label);
    group.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && choose(number));
    group.addEventListener("click", () => choose(number === chosen ? -1 : number));
    group.addEventListener("focus", () => group.matches(":focus-visible") && choose(number));
    return group;
  });
  const ends = tokens.map((token, number) => {
    const value = chosen < 0 ? null : weight(chosen, number);
    const fill = value === null ? "transparent" : mixed(value);
    const area = { x: RIGHT, y: y(number) - ROW / 2 + 1, width: WIDTH - RIGHT, height: ROW - 2, style: `fill:${fill}` };
    const group = svg("g", {}, [svg("rect", area), svg("title", {}, names[number])]);
    group.append(svg("text", { x: RIGHT + 6, y: y(number) + 4, class: "token" }, cut(token)));
    if (value !== null && value >= 0.005) {
      group.append(svg("text", { x: WIDTH - 4, y: y(number) + 4, class: "weight end" }, `${Math.round(100 * value)} %`));
    }
    return group;
  });
  const titles = [
    svg("text", { x: LEFT - 6, y: 14, class: "label end" }, "from"),
    svg("text", { x: RIGHT + 6, y: 14, class: "label" }, "to"),
  ];
  const drawing = show(figure, WIDTH, height, "attention between tokens", [...titles, ...parts, ...ends, ...rows]);
  drawing.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && choose(-1));
  roving(rows, 1, Math.max(chosen, 0));
  return rows;
}

const CELL = { gap: 4, left: 20, top: 16 };
const STRENGTHS = [0.1, 0.3, 0.6, 1.01]; // lines of similar strength are one path

/** Draw all heads of a sentence. `special`: with attention to special tokens. `select` receives the layer and the head that is clicked, from 0. */
function drawHeads(figure, sentence, layers, heads, special, selected, select) {
  const size = sentence.tokens.length;
  const side = Math.max(36, Math.min(84, 420 / heads)); // few heads have room for larger pictures
  const cell = { width: side, height: side * 1.1 };
  const width = CELL.left + heads * (cell.width + CELL.gap);
  const height = CELL.top + layers * (cell.height + CELL.gap);
  const parts = [];
  for (let head = 0; head < heads; head++) {
    const x = CELL.left + head * (cell.width + CELL.gap) + cell.width / 2;
    parts.push(svg("text", { x, y: 11, class: "label middle" }, String(head + 1)));
  }
  const cells = [];
  for (let layer = 0; layer < layers; layer++) {
    const top = CELL.top + layer * (cell.height + CELL.gap);
    parts.push(svg("text", { x: CELL.left - 5, y: top + cell.height / 2 + 4, class: "label end" }, String(layer + 1)));
    for (let head = 0; head < heads; head++) {
      const left = CELL.left + head * (cell.width + CELL.gap);
      const all = attentionOf(sentence, layer, head, heads);
      const weight = special ? all : withoutSpecial(sentence, all);
      const y = (token) => (top + ((token + 0.5) / size) * cell.height).toFixed(1);
      const lines = STRENGTHS.slice(1).map(() => "");
      for (let from = 0; from < size; from++) {
        for (let to = 0; to < size; to++) {
          const place = STRENGTHS.findIndex((strength) => weight(from, to) < strength) - 1;
          if (place >= 0) lines[place] += `M${left + 3} ${y(from)}L${left + cell.width - 3} ${y(to)}`;
        }
      }
      const isSelected = layer === selected[0] && head === selected[1];
      const name = `head ${layer + 1}.${head + 1}`;
      const picture = svg("g", { class: isSelected ? "cell selected" : "cell", role: "button", "aria-label": name });
      picture.append(svg("title", {}, name));
      picture.append(svg("rect", { x: left, y: top, width: cell.width, height: cell.height, rx: 2, class: "ground" }));
      lines.forEach((d, place) => d && picture.append(svg("path", { d, class: `rays strength-${place}` })));
      picture.addEventListener("click", () => select(layer, head));
      cells.push(picture);
    }
  }
  show(figure, width, height, "attention of all heads", [...parts, ...cells]);
  roving(cells, heads, selected[0] * heads + selected[1]);
}
