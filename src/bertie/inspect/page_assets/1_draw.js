// Drawing with SVG, colors, and the export of what is on the screen.

const SVG = "http://www.w3.org/2000/svg";
const LARGEST = 1.7; // pixels per unit of a drawing

/** Create an SVG element. `children` may be a text. */
const svg = (name, attributes, children) => filled(document.createElementNS(SVG, name), attributes, children);

/** Create an HTML element. `children` may be a text. */
const html = (name, attributes, children) => filled(document.createElement(name), attributes, children);

function filled(element, attributes = {}, children = []) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") element.style.cssText = value; // a strict Content-Security-Policy refuses the attribute
    else element.setAttribute(key, value);
  }
  if (typeof children === "string") element.textContent = children;
  else element.append(...children);
  return element;
}

/** Show a drawing in a figure: replace the earlier one. `description` is for readers who cannot see it. */
function show(figure, width, height, description, children) {
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": description }, children);
  drawing.style.setProperty("--largest", `${(LARGEST * width) / 16}rem`); // few heads need no huge letters
  figure.querySelector(".drawing").replaceChildren(drawing);
  return drawing;
}

/** Return a number with about three digits. */
function shown(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.1 || size === 0 ? 2 : size >= 0.01 ? 3 : 4).replace("-", "−");
}

/** Return a share, 0 to 1, in percent. */
function percent(share) {
  const points = 100 * share;
  return points > 0 && points < 0.1 ? "< 0.1 %" : `${points.toFixed(1)} %`;
}

/** Return a color between two variables of the theme; `share` is from 0 to 1. */
function mixed(share, color = "--accent") {
  return `color-mix(in srgb, var(${color}) ${Math.round(100 * Math.max(0, Math.min(1, share)))}%, var(--tint))`;
}

/** Move the focus among elements with the arrow keys. Only one of them is in the tab order. */
function roving(elements, columns, current = 0) {
  elements.forEach((element, index) => {
    element.setAttribute("tabindex", index === current ? 0 : -1);
    element.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
      const target = event.key === "Home" ? 0 : event.key === "End" ? elements.length - 1 : index + (step ?? NaN);
      if (event.key === "Enter" || event.key === " ") element.dispatchEvent(new MouseEvent("click"));
      else if (!elements[target]) return;
      else {
        elements.forEach((each) => each.setAttribute("tabindex", -1));
        elements[target].setAttribute("tabindex", 0);
        elements[target].focus();
      }
      event.preventDefault();
    });
  });
}

// Export

function save(name, content, type) {
  const link = html("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

/** Return a color as rgb(): other programs do not know variables of CSS and mixed colors. */
function plainColor(color) {
  if (color === "none" || color.startsWith("url")) return color;
  pixel.clearRect(0, 0, 1, 1);
  pixel.fillStyle = color;
  pixel.fillRect(0, 0, 1, 1);
  const [red, green, blue, alpha] = pixel.getImageData(0, 0, 1, 1).data;
  return alpha ? `rgb(${red},${green},${blue})` : "none";
}

/** Return a drawing as a file of its own, with the colors of the screen, and its size. */
function standalone(drawing) {
  const copy = drawing.cloneNode(true);
  const [, , width, height] = drawing.getAttribute("viewBox").split(/[ ,]+/).map(Number);
  const originals = drawing.querySelectorAll("*");
  const known = new Map(); // many elements have the same colors
  const plain = (color) => known.get(color) ?? known.set(color, plainColor(color)).get(color);
  copy.querySelectorAll("*").forEach((element, index) => {
    const style = getComputedStyle(originals[index]);
    const css = [`fill:${plain(style.fill)}`, `stroke:${plain(style.stroke)}`, `stroke-width:${style.strokeWidth}`];
    css.push(`opacity:${style.opacity}`, `stroke-dasharray:${style.strokeDasharray}`);
    if (element.tagName === "text") {
      css.push(`font:${style.fontWeight} ${style.fontSize} sans-serif`, `text-anchor:${style.textAnchor}`);
    }
    element.removeAttribute("class");
    element.removeAttribute("tabindex");
    element.style.cssText = css.join(";");
  });
  for (const [key, value] of Object.entries({ xmlns: SVG, width, height })) copy.setAttribute(key, value);
  copy.prepend(svg("rect", { width, height, fill: plainColor(getComputedStyle(document.body).backgroundColor) }));
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

function savePng(name, drawing) {
  const { text, width, height } = standalone(drawing);
  const image = new Image();
  image.onload = () => {
    const canvas = html("canvas", { width: 3 * width, height: 3 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(`${name}.png`, blob, "image/png"));
    URL.revokeObjectURL(image.src);
  };
  image.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
}

/** Return rows as CSV. */
function csv(rows) {
  const quoted = (value) => (/[",\n\r]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : (value ?? ""));
  return rows.map((row) => row.map(quoted).join(",") + "\n").join("");
}

/** Add buttons that save the drawing of a figure. `rows` returns its numbers, with a header. */
function exportable(figure, name, rows) {
  const buttons = html("p", { class: "export" });
  const add = (label, action) => {
    const button = html("button", { type: "button", title: `Save as ${label}` }, label);
    button.addEventListener("click", action);
    buttons.append(button);
  };
  const drawing = () => figure.querySelector("svg");
  add("SVG", () => save(`${name()}.svg`, standalone(drawing()).text, "image/svg+xml"));
  add("PNG", () => savePng(name(), drawing()));
  if (rows) add("CSV", () => save(`${name()}.csv`, csv(rows()), "text/csv"));
  figure.append(buttons);
}
