// The map of all heads, the plan of similar heads, and the numbers of one head.

/** Return a value of a measure as text: shares in percent everywhere. */
const shownOf = (measure, value) => (measure.scale === "share" && value !== null ? percent(value) : shown(value));

/** Return the range of a measure: shares and sizes start at 0, differences have 0 in the middle. */
function rangeOf(measure) {
  const values = measure.values.filter((value) => value !== null);
  const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
  if (measure.scale === "difference") return [-Math.max(-low, high, 1e-9), Math.max(-low, high, 1e-9)];
  if (["share", "size"].includes(measure.scale)) return [0, Math.max(high, 1e-9)];
  return [low, high > low ? high : low + 1];
}

function colorOf(measure, value) {
  if (value === null) return "transparent";
  const [low, high] = rangeOf(measure);
  if (measure.scale === "difference") return value < 0 ? mixed(value / low, "--bad") : mixed(value / high);
  return mixed((value - low) / (high - low));
}

/** Draw layers × heads, colored by a measure. */
function drawMap(figure, data, measure, selected, select) {
  const [layers, heads] = [data.layers, data.heads];
  const [left, top, side] = [24, 20, Math.min(56, 336 / heads)];
  const tall = Math.min(side, 30);
  const parts = [];
  for (let head = 0; head < heads; head++) {
    parts.push(svg("text", { x: left + side * (head + 0.5), y: 13, class: "label middle" }, String(head + 1)));
  }
  const cells = [];
  const strong = (value) => value !== null && Math.abs(value) > 0.62 * Math.max(...rangeOf(measure).map(Math.abs));
  for (let layer = 0; layer < layers; layer++) {
    const y = top + tall * layer;
    parts.push(svg("text", { x: left - 6, y: y + tall / 2 + 4, class: "label end" }, String(layer + 1)));
    for (let head = 0; head < heads; head++) {
      const value = measure.values[layer * heads + head];
      const isSelected = layer === selected[0] && head === selected[1];
      const name = `head ${layer + 1}.${head + 1}: ${shownOf(measure, value)}`;
      const cell = svg("g", { class: isSelected ? "cell selected" : "cell", role: "button", "aria-label": name });
      const area = { x: left + side * head + 1, y: y + 1, width: side - 2, height: tall - 2, rx: 2 };
      cell.append(svg("title", {}, name), svg("rect", { ...area, style: `fill:${colorOf(measure, value)}` }));
      if (side >= 26 && value !== null) {
        const text = measure.scale === "share" ? String(Math.round(100 * value)) : shown(value).slice(0, 5);
        const place = { x: left + side * (head + 0.5), y: y + tall / 2 + 3.5 };
        cell.append(svg("text", { ...place, class: strong(value) ? "value strong middle" : "value middle" }, text));
      }
      cell.addEventListener("click", () => select(layer, head));
      cells.push(cell);
    }
  }
  const height = top + tall * layers + 4;
  show(figure, left + side * heads + 4, height, `${measure.label}, by layer and head`, [...parts, ...cells]);
  roving(cells, heads, selected[0] * heads + selected[1]);
}

const COLORS = 6; // of clusters; more clusters have the same colors, and a dashed edge
const NAME = { letter: 5.4, height: 15, gap: 2 }; // size of the name of a head

/** Return the classes of a cluster, counted from 1. */
const clusterClass = (cluster) => `series-${(cluster - 1) % COLORS}${cluster > COLORS ? " again" : ""}`;

/** Return centers of boxes of one size that do not cover each other: each at the free place nearest to its point, {x, y}. */
function spread(points, width, height) {
  const placed = [];
  const isFree = ({ x, y }) => placed.every((each) => Math.abs(each.x - x) >= width || Math.abs(each.y - y) >= height);
  for (const point of points) {
    let place = point;
    for (let step = 1; !isFree(place); step++) { // along a spiral
      const [radius, angle] = [2 * Math.sqrt(step), 2.4 * step];
      place = { x: point.x + radius * Math.cos(angle), y: point.y + radius * Math.sin(angle) };
    }
    placed.push(place);
  }
  return placed;
}

/** Draw the plan in which similar heads are close, by their names. The color is that of the cluster. */
function drawPlan(figure, data, selected, select) {
  const { x, y, cluster } = data.plan;
  const names = x.map((_, index) => `${Math.floor(index / data.heads) + 1}.${(index % data.heads) + 1}`);
  const width = 8 + NAME.letter * Math.max(...names.map((name) => name.length));
  const size = Math.max(320, Math.sqrt(2.5 * x.length * width * NAME.height)); // room for the names
  const range = Math.max(...[x, y].map((each) => Math.max(...each) - Math.min(...each)), 1e-9);
  const wanted = x.map((_, index) => ({ x: (size * x[index]) / range, y: (size * y[index]) / range }));
  const points = spread(wanted, width + NAME.gap, NAME.height + NAME.gap);
  const [left, top] = ["x", "y"].map((axis) => Math.min(...points.map((point) => point[axis])));
  const [right, bottom] = ["x", "y"].map((axis) => Math.max(...points.map((point) => point[axis])));
  const cells = points.map((point, index) => {
    const isSelected = index === selected[0] * data.heads + selected[1];
    const label = `head ${names[index]}, cluster ${cluster[index]}`;
    const cell = svg("g", { class: isSelected ? "cell selected" : "cell", role: "button", "aria-label": label });
    const corner = { x: point.x - left + 3, y: point.y - top + 3 };
    const box = { ...corner, width, height: NAME.height, rx: NAME.height / 2, class: `member ${clusterClass(cluster[index])}` };
    cell.append(svg("title", {}, label), svg("rect", box));
    cell.append(svg("text", { x: corner.x + width / 2, y: corner.y + 10.8, class: "dot middle" }, names[index]));
    cell.addEventListener("click", () => select(Math.floor(index / data.heads), index % data.heads));
    return cell;
  });
  show(figure, right - left + width + 6, bottom - top + NAME.height + 6, "heads with similar attention are close", cells);
  roving(cells, data.heads, selected[0] * data.heads + selected[1]);
}

/** Return the legend of the plan: the clusters with their numbers of heads. */
function clusterLegend(clusters) {
  const numbers = [...new Set(clusters)].sort((a, b) => a - b);
  return numbers.map((cluster) => {
    const count = clusters.filter((each) => each === cluster).length;
    return html("span", { class: `member ${clusterClass(cluster)}` }, `cluster ${cluster}: ${count} head${count === 1 ? "" : "s"}`);
  });
}

/** Draw the mean attention by distance, beside that of a head that attends uniformly. */
function drawDistances(figure, distances, index) {
  const { offsets, uniform } = distances;
  const values = distances.attention[index];
  const [width, height, bottom] = [360, 130, 108];
  const highest = Math.max(...values.filter((value) => value !== null), ...uniform, 0.1);
  const step = (width - 30) / offsets.length;
  const y = (value) => bottom - (value / highest) * (bottom - 14);
  const parts = [svg("text", { x: 28, y: 10, class: "label end" }, `${Math.round(100 * highest)} %`)];
  parts.push(svg("line", { x1: 30, x2: width, y1: bottom, y2: bottom, class: "axis" }));
  offsets.forEach((offset, place) => {
    const x = 30 + step * place;
    const value = values[place] ?? 0;
    const bar = svg("rect", { x: x + 1, y: y(value), width: step - 2, height: bottom - y(value), class: "bar-of" });
    bar.append(svg("title", {}, `${offset > 0 ? "+" : ""}${offset}: ${values[place] === null ? "–" : percent(values[place])}`));
    parts.push(bar, svg("line", { x1: x, x2: x + step, y1: y(uniform[place]), y2: y(uniform[place]), class: "base" }));
    if (offset % 5 === 0 || Math.abs(offset) === 1) {
      const text = offset > 0 ? `+${offset}` : String(offset).replace("-", "−");
      parts.push(svg("text", { x: x + step / 2, y: bottom + 14, class: "label middle" }, text));
    }
  });
  show(figure, width, height, "mean attention by distance in tokens", parts);
}

const FEWEST = 50; // a head that is right for a few words says nothing

/** Return the measures of a kind that a head finds better than their baseline, those with the largest gain first. */
function gains(data, kind, index) {
  return data.measures
    .filter((measure) => measure.kind === kind && measure.values[index] !== null && measure.questions >= FEWEST)
    .map((measure) => ({ measure, value: measure.values[index], gain: measure.values[index] - (measure.baseline ?? 0) }))
    .filter(({ gain }) => gain > 0)
    .sort((a, b) => b.gain - a.gain);
}

/** Return a table of a head's numbers beside their baselines. A star marks the best head of all. */
function numbersTable(caption, entries, base, choose) {
  const rows = entries.map(({ measure, value }) => {
    const button = html("button", { type: "button", title: "Show this on the map" }, measure.short);
    button.addEventListener("click", () => choose(measure.key));
    const star = measure.kind !== "Attention" && value === Math.max(...measure.values) ? " ★" : "";
    const cells = [html("td", {}, [button]), html("td", { class: "number" }, shownOf(measure, value) + star)];
    cells.push(html("td", { class: "number quiet" }, shownOf(measure, measure.baseline)));
    return html("tr", {}, cells);
  });
  const heads = [html("th", {}, caption), html("th", { class: "number" }, "head"), html("th", { class: "number" }, base)];
  if (!rows.length) rows.push(html("tr", {}, [html("td", { class: "quiet", colspan: 3 }, `none better than the ${base}`)]));
  return html("table", {}, [html("thead", {}, [html("tr", {}, heads)]), html("tbody", {}, rows)]);
}
