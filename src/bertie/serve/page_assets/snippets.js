// Programs that send the request on the screen: curl, Python's standard library, and OpenAI's client.

/** Quote a text for a shell of Unix. */
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

function curlSnippet(path, body) {
  const lines = [`curl ${quoted(BASE + path)}`, "-H 'Content-Type: application/json'"];
  if (NEEDS_KEY) lines.push('-H "Authorization: Bearer $API_KEY"');
  const json = JSON.stringify(body);
  const several = () => JSON.stringify(body, null, 2).replaceAll("\n", "\n  "); // below the option
  lines.push(`-d ${quoted(json.length > 90 ? several() : json)}`);
  return lines.join(" \\\n  ");
}

/** Return a value as Python writes it. Strings of JSON are strings of Python. */
function pythonValue(value, indent = "") {
  if (value === null || value === undefined) return "None";
  if (value === true || value === false) return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((each) => pythonValue(each, inner))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${pythonValue(each, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = open + parts.join(", ") + close;
  if (line.length + indent.length <= 88 && !line.includes("\n")) return line;
  return `${open}\n${parts.map((part) => `${inner}${part},\n`).join("")}${indent}${close}`;
}

function pythonSnippet(path, body) {
  const headers = { "Content-Type": "application/json" };
  const shownHeaders = NEEDS_KEY
    ? `{\n    "Content-Type": "application/json",\n    "Authorization": f"Bearer {os.environ['API_KEY']}",\n}`
    : pythonValue(headers);
  return [
    `import json\n${NEEDS_KEY ? "import os\n" : ""}import urllib.request\n`,
    `message = ${pythonValue(body)}`,
    `headers = ${shownHeaders}`,
    `url = ${JSON.stringify(BASE + path)}`,
    "request = urllib.request.Request(url, json.dumps(message).encode(), headers)",
    "with urllib.request.urlopen(request) as response:",
    "    print(json.load(response))",
  ].join("\n");
}

/** Return a program that embeds the texts with OpenAI's client, and compares their vectors. */
function openaiSnippet(model, texts) {
  const key = NEEDS_KEY ? 'os.environ["API_KEY"]' : '"none"';
  return [
    `${NEEDS_KEY ? "import os\n" : ""}from math import hypot\nfrom operator import mul\n\nimport openai\n`,
    `client = openai.OpenAI(base_url=${JSON.stringify(`${BASE}v1`)}, api_key=${key})`,
    `texts = ${pythonValue(texts)}`,
    `answer = client.embeddings.create(model=${pythonValue(model)}, input=texts)`,
    "vectors = [each.embedding for each in answer.data]",
    "for a in vectors:",
    '    print(*(f"{sum(map(mul, a, b)) / hypot(*a) / hypot(*b):.3f}" for b in vectors))',
  ].join("\n");
}

/** Copy a text. Without HTTPS, browsers let only a selection be copied. Returns whether it worked. */
async function copy(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(element);
    return document.execCommand("copy");
  }
}

/** Return the part of the page with the programs: {element, update}. `update` receives them by the name of the language. */
function snippetsView() {
  const tabs = html("div", { class: "tabs", role: "group", "aria-label": "Language of the program" });
  const code = html("code");
  const button = html("button", { type: "button", class: "plain" }, "Copy");
  const said = html("span", { class: "quiet", role: "status" });
  const head = html("div", { class: "code-head" }, [html("h3", {}, "The same request in a program"), tabs, said, button]);
  const pre = html("pre", { tabindex: 0, "aria-label": "Program" }, [code]);
  let shown = {};
  let chosen = "curl";
  const update = (snippets = shown) => {
    shown = snippets;
    if (!shown[chosen]) chosen = Object.keys(shown)[0];
    code.textContent = shown[chosen];
    said.textContent = "";
    for (const tab of tabs.children) tab.setAttribute("aria-pressed", tab.textContent === chosen);
  };
  button.addEventListener("click", async () => {
    said.textContent = (await copy(code.textContent, code)) ? "Copied." : "Select the text and copy it.";
  });
  return {
    element: html("section", { class: "code", "aria-label": "Programs" }, [head, pre]),
    update(snippets) {
      const names = Object.keys(snippets);
      if (names.join() !== Object.keys(shown).join()) {
        tabs.replaceChildren(
          ...names.map((name) => {
            const tab = html("button", { type: "button", class: "tab" }, name);
            tab.addEventListener("click", () => {
              chosen = name;
              update();
            });
            return tab;
          }),
        );
      }
      update(snippets);
    },
  };
}
