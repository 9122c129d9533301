// The state of the page, and what happens when it changes.

const data = JSON.parse(document.getElementById("data").textContent);
for (const sentence of data.sentences) {
  sentence.attention = Uint8Array.from(atob(sentence.attention), (character) => character.charCodeAt(0));
}
const byKey = new Map(data.measures.map((measure) => [measure.key, measure]));
const at = (name) => document.getElementById(name);
const state = { measure: data.measures[0]?.key ?? "", layer: 0, head: 0, sentence: 0, token: -1, special: true };

const headName = () => `${state.layer + 1}.${state.head + 1}`;
const indexOf = () => state.layer * data.heads + state.head;

function select(layer, head) {
  const focused = document.activeElement?.closest?.("figure")?.id;
  Object.assign(state, { layer, head, token: -1 });
  update();
  if (focused) document.querySelector(`#${focused} .selected`)?.focus();
}

function choose(key) {
  state.measure = key;
  update();
  at("map").scrollIntoView({ block: "nearest" });
}

/** Return the relation that the head finds best, if it is the measure on the map or beats its baseline. */
function relationOfHead() {
  const onMap = byKey.get(state.measure);
  if (onMap?.kind === "Relations") return onMap;
  const [best] = gains(data, "Relations", indexOf()).filter(({ measure }) => measure.relation !== "all");
  return best ? best.measure : null;
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function updateMap() {
  const measure = byKey.get(state.measure);
  at("measure").value = state.measure;
  drawMap(at("map"), data, measure, [state.layer, state.head], select);
  const percentages = measure.scale === "share" ? " In percent." : "";
  const base = measure.baseline === null ? "" : ` ${measure.baseline_name}: ${shownOf(measure, measure.baseline)}.`;
  at("meaning").textContent = `${capital(measure.label)}.${percentages}${base} Rows are layers, columns are heads.`;
}

function updatePanel() {
  at("head-title").textContent = `Head ${headName()}`;
  const index = indexOf();
  const tables = [];
  const add = (kind, caption, base, most) => {
    const all = numbersOf(kind, index);
    const entries = kind === "Attention" || kind === "Loss" ? all : gains(data, kind, index).slice(0, most);
    if (all.length) tables.push(numbersTable(caption, entries, base, choose));
  };
  add("Relations", "Relations it finds", "offset", 5);
  add("Coreference", "Antecedents it finds", "rule", 3);
  add("Attention", "Attention", "uniform");
  add("Loss", "Importance", "");
  at("numbers").replaceChildren(...tables);
  if (data.distances) drawDistances(at("distances"), data.distances, index);
  if (!data.plan) return;
  const [layer, head] = [data.plan.nearest_layer[index], data.plan.nearest_head[index]];
  const link = html("button", { type: "button" }, `${layer}.${head}`);
  link.addEventListener("click", () => select(layer - 1, head - 1));
  at("similar").replaceChildren(`Cluster ${data.plan.cluster[index]}. Most similar: head `, link, ".");
}

const numbersOf = (kind, index) =>
  data.measures.filter((each) => each.kind === kind).map((measure) => ({ measure, value: measure.values[index] }));

function updateLines() {
  const sentence = data.sentences[state.sentence];
  if (!sentence) return;
  const relation = relationOfHead();
  const forward = relation ? relation.directions[indexOf()] === 0 : true;
  const arcs = sentence.arcs
    .filter(([name]) => relation && (name === relation.relation || name.startsWith(`${relation.relation}:`)))
    .map(([, word, head]) => (forward ? [word, head] : [head, word]));
  const all = attentionOf(sentence, state.layer, state.head, data.heads);
  const weight = state.special ? all : withoutSpecial(sentence, all);
  const rows = drawHead(at("lines"), sentence, weight, arcs, state.token, (token) => {
    if (token === state.token) return;
    const focused = at("lines").contains(document.activeElement);
    state.token = token;
    const drawn = updateLines();
    if (focused && token >= 0) drawn[token].focus({ preventScroll: true });
  });
  at("lines-title").textContent = `Head ${headName()}`;
  const direction = forward ? "from the dependent to its head" : "from the head to its dependent";
  at("arcs").textContent = arcs.length ? `Dashed: ${relation.relation} in the treebank, ${direction}.` : "";
  return rows;
}

function update() {
  if (data.measures.length) {
    updateMap();
    updatePanel();
  }
  updateLines();
  const selected = [state.layer, state.head];
  if (data.plan) drawPlan(at("plan"), data, selected, select);
  if (data.sentences.length) {
    const sentence = data.sentences[state.sentence];
    drawHeads(at("all-heads"), sentence, data.layers, data.heads, state.special, selected, select);
  }
  const place = new URLSearchParams({ head: headName(), measure: state.measure, sentence: state.sentence + 1 });
  history.replaceState(null, "", `#${place}`);
}

/** Set the state from the address, so that a link shows the same head. */
function readAddress() {
  const place = new URLSearchParams(location.hash.slice(1));
  const [layer, head] = (place.get("head") ?? "").split(".").map(Number);
  if (layer >= 1 && layer <= data.layers && head >= 1 && head <= data.heads) {
    Object.assign(state, { layer: layer - 1, head: head - 1 });
  }
  if (byKey.has(place.get("measure"))) state.measure = place.get("measure");
  const sentence = Number(place.get("sentence"));
  if (sentence >= 1 && sentence <= data.sentences.length) state.sentence = sentence - 1;
}

/** Start with the head that is best at the first relation, or highest on the map. */
function firstHead() {
  const measure = data.measures.find((each) => each.kind === "Relations" && each.relation === data.first_relation) ?? data.measures[0];
  if (!measure) return;
  state.measure = measure.key;
  const best = measure.values.indexOf(Math.max(...measure.values.filter((value) => value !== null)));
  if (best >= 0) Object.assign(state, { layer: Math.floor(best / data.heads), head: best % data.heads });
}

function fillControls() {
  for (const kind of new Set(data.measures.map((measure) => measure.kind))) {
    const group = html("optgroup", { label: kind });
    for (const measure of data.measures) {
      if (measure.kind === kind) group.append(html("option", { value: measure.key }, measure.short));
    }
    at("measure").append(group);
  }
  at("measure")?.addEventListener("change", (event) => choose(event.target.value));
  data.sentences.forEach((sentence, number) => {
    const characters = [...sentence.text.replace(/\s+/g, " ").trim()];
    const text = characters.length > 70 ? `${characters.slice(0, 69).join("")}…` : characters.join("");
    at("sentence")?.append(html("option", { value: number }, text));
  });
  at("special")?.addEventListener("change", (event) => {
    state.special = event.target.checked;
    update();
  });
  at("sentence")?.addEventListener("change", (event) => {
    Object.assign(state, { sentence: Number(event.target.value), token: -1 });
    update();
  });
}

function mapRows() {
  const measure = byKey.get(state.measure);
  const rows = measure.values.map((value, index) => [Math.floor(index / data.heads) + 1, (index % data.heads) + 1, value]);
  return [["layer", "head", measure.key], ...rows];
}

function lineRows() {
  const sentence = data.sentences[state.sentence];
  const weight = attentionOf(sentence, state.layer, state.head, data.heads);
  const rows = sentence.pieces.map((piece, from) => [piece, ...sentence.pieces.map((_, to) => weight(from, to).toFixed(3))]);
  return [["", ...sentence.pieces], ...rows];
}

function distanceRows() {
  const { offsets, uniform, attention } = data.distances;
  return [["distance", "attention", "uniform"], ...offsets.map((offset, i) => [offset, attention[indexOf()][i], uniform[i]])];
}

fillControls();
firstHead();
readAddress();
if (at("sentence")) at("sentence").value = state.sentence;
update();
const named = (what) => () => `${what}-head-${headName()}`;
if (data.measures.length) exportable(at("map"), () => `map-${state.measure}`.replace(/[^\w-]+/g, "-"), mapRows);
if (data.distances) exportable(at("distances"), named("distances"), distanceRows);
if (data.plan) {
  exportable(at("plan"), () => "similar-heads");
  at("clusters").append(...clusterLegend(data.plan.cluster));
}
if (data.sentences.length) {
  exportable(at("lines"), () => `attention-${state.sentence + 1}-head-${headName()}`, lineRows);
  exportable(at("all-heads"), () => `attention-${state.sentence + 1}-all-heads`);
}
document.querySelectorAll("main > figure:not(.table)").forEach((figure, number) => exportable(figure, () => `chart-${number + 1}`));
window.addEventListener("hashchange", () => {
  readAddress();
  update();
});
