// Parts that several tasks use: fields, bars, marked text.

let fields = 0; // numbers of the elements that labels refer to

/** Return a labeled control. */
function field(label, control, hint = "") {
  const id = `field-${++fields}`;
  control.setAttribute("id", id);
  const parts = [html("label", { for: id }, label), control];
  if (hint) {
    control.setAttribute("aria-describedby", `${id}-hint`);
    parts.push(html("p", { class: "hint", id: `${id}-hint` }, hint));
  }
  return html("div", { class: "field" }, parts);
}

/** Return a field for text of several lines. */
const area = (rows) => html("textarea", { rows, dir: "auto" });

/** Return a field for text of one line. */
const line = () => html("input", { type: "text", dir: "auto", autocomplete: "off" });

/** Return the lines of a text that are not blank. */
const linesOf = (text) => text.split("\n").map((each) => each.trim()).filter(Boolean);

/** Return a number with some decimals, and the sign of mathematics. */
function decimal(value, digits) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

/** Return a count with its noun. */
const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

/**
 * Return bars with their labels and values.
 * @param entries [{label, share, value, title}]: `share` is the length of the bar, 0 to 1; `value` is the text after it, by
 *   default the share in percent.
 * @param choose Receives the number of an entry that is clicked. Without it, entries cannot be clicked.
 * @param chosen Number of the entry that is marked.
 */
function bars(entries, choose, chosen = -1) {
  const rows = entries.map(({ label, share, value, title }, number) => {
    const width = `width:${100 * Math.max(0, Math.min(1, share))}%`;
    const name = choose ? html("button", { type: "button", class: "plain name" }, label) : html("span", { class: "name" }, label);
    if (title) name.setAttribute("title", title);
    if (choose) {
      name.setAttribute("aria-pressed", number === chosen);
      name.addEventListener("click", () => choose(number));
    }
    name.setAttribute("dir", "auto");
    const bar = html("span", { class: "bar", "aria-hidden": "true" }, [html("i", { style: width })]);
    const parts = [name, bar, html("span", { class: "amount" }, value ?? percent(share))];
    return html("li", { class: number === chosen ? "chosen" : "" }, parts);
  });
  return html("ol", { class: "bars" }, rows);
}

/** Return the first bars, and a button that shows the others. */
function fewBars(entries, most, choose, chosen) {
  const shown = bars(entries.slice(0, most), choose, chosen);
  if (entries.length <= most) return [shown];
  const others = bars(entries.slice(most), choose && ((number) => choose(most + number)), chosen - most);
  return [shown, html("details", {}, [html("summary", {}, `${entries.length - most} more`), others])];
}

/** Return a box that scrolls sideways, below a hint that is there while some of its content is outside. */
function scrolling(box) {
  const hint = html("p", { class: "hint sideways", hidden: "" }, "Scroll sideways to see all columns.");
  new ResizeObserver(() => hint.toggleAttribute("hidden", box.scrollWidth <= box.clientWidth)).observe(box);
  return html("div", {}, [hint, box]);
}

/** Return a table with a header row. Cells are texts or numbers; numbers are aligned. */
function table(header, rows, caption) {
  const cell = (value) => html("td", typeof value === "number" ? { class: "number" } : { dir: "auto" }, shownCell(value));
  const head = html("tr", {}, header.map((name) => html("th", { scope: "col" }, name)));
  const body = rows.map((row) => html("tr", {}, row.map(cell)));
  const parts = [html("caption", { class: "hidden" }, caption), html("thead", {}, [head]), html("tbody", {}, body)];
  return scrolling(html("div", { class: "box" }, [html("table", {}, parts)]));
}

const shownCell = (value) => (typeof value === "number" ? decimal(value, 3) : value);

/** Return a paragraph of text, in which some characters are marked. Positions count characters, as Python does. */
function markedText(text, start, end) {
  const characters = [...text];
  const part = (from, to) => characters.slice(from, to).join("");
  const parts = [part(0, start)];
  if (end > start) parts.push(html("mark", { class: "found" }, part(start, end)));
  parts.push(part(Math.max(start, end)));
  return html("p", { class: "text", dir: "auto" }, parts);
}
