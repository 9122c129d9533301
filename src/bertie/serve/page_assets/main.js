// The page: models, tasks, and what happens when a request is sent.

const TASKS = [searchTask, maskTask, ...PREDICTIONS, compareTask, rerankTask, attentionTask];
const at = (name) => document.getElementById(name);
const views = new Map(); // by model and task: the fields keep their text
let cards = [];
let shownView = null;

/** Return the elements of a task of a model, and what the page does with them. */
function buildView(card, task) {
  const status = html("p", { class: "status", role: "status" });
  const result = html("div", { class: "result" });
  const output = html("section", { class: "output", "aria-label": "Result" }, [status, result]);
  const button = html("button", { type: "submit", class: "run" }, "Run");
  const programs = snippetsView();
  const view = { card, task, status, result, output, button };
  const tool = (view.tool = task.build(card, () => run(view)));
  const examples = examplesOf(task, card).map(([name, values]) => {
    const example = html("button", { type: "button", class: "plain" }, name);
    example.addEventListener("click", () => {
      fill(tool, values);
      view.refresh();
      run(view);
    });
    return example;
  });
  const actions = html("div", { class: "actions" }, [button, html("span", { class: "quiet keys" }, "Ctrl + Enter")]);
  const tries = html("div", { class: "tries", role: "group", "aria-label": "Examples" }, [html("span", { class: "quiet" }, "Try"), ...examples]);
  const form = html("form", { class: "input", "aria-label": "Input" }, [tries, ...tool.fields, actions]);
  view.body = () => ({ model: card.id, ...tool.body() });
  view.refresh = () => {
    const body = view.body();
    const own = { curl: curlSnippet(task.path, body), Python: pythonSnippet(task.path, body) };
    programs.update({ ...own, ...tool.snippets?.(card.id, body) });
  };
  form.addEventListener("input", view.refresh);
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(view);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (button.getAttribute("aria-disabled") !== "true") run(view);
  });
  fill(tool, examplesOf(task, card)[0][1]);
  view.refresh();
  result.append(html("p", { class: "empty" }, "Run the request to see its result here."));
  const about = html("p", { class: "about" }, task.about(card));
  const columns = html("div", { class: tool.wide ? "columns wide" : "columns" }, [form, output]);
  view.elements = [about, columns, programs.element];
  return view;
}

function fill(tool, values) {
  for (const [name, value] of Object.entries(values)) tool.controls[name].value = value;
}

/** Show whether a view waits for its answer. */
function setWaiting(view, waiting) {
  view.button.setAttribute("aria-disabled", waiting); // not `disabled`, which would move the focus
  view.button.textContent = waiting ? "Running …" : "Run";
  view.output.setAttribute("aria-busy", waiting);
}

/** Send the request of a view and show the answer. An earlier request is cancelled. */
async function run(view) {
  const { task, tool } = view;
  const body = view.body();
  setWaiting(view, true);
  try {
    const found = await send(task.path, tool.sent ? tool.sent(body) : body);
    if (found === null) return; // a later request has taken its place
    const replace = (elements, said) => {
      view.result.replaceChildren(...elements);
      view.status.textContent = said;
    };
    replace(tool.show(found.answer, body, replace), tool.said(found.answer, body));
    view.result.append(footer(found));
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    showError(view, error);
  }
  setWaiting(view, false);
}

/** Return the line below a result: tokens and times. */
function footer(found) {
  const { prompt_tokens: tokens, truncated } = found.answer.usage;
  const parts = [html("span", {}, `${counted(tokens, "token")} · ${timing(found)}`)];
  if (truncated) parts.unshift(html("span", { class: "warning" }, `${counted(truncated, "text")} truncated: the model reads fewer tokens.`));
  return html("p", { class: "timing" }, parts);
}

function showError(view, error) {
  const parts = [html("strong", {}, error.status ? `Status ${error.status}` : "No answer"), ` ${error.message}`];
  view.status.textContent = "";
  view.result.replaceChildren(html("p", { class: "problem", role: "alert" }, parts));
  if (error.status === 401) askForKey();
}

// Models and tasks

function chosenCard() {
  return cards[at("model").selectedIndex];
}

/** Show a task of the chosen model. */
function showTask(task) {
  const card = chosenCard();
  const name = JSON.stringify([card.id, task.id]);
  if (shownView) {
    cancel();
    setWaiting(shownView, false);
  }
  if (!views.has(name)) views.set(name, buildView(card, task));
  shownView = views.get(name);
  for (const tab of at("tasks").children) {
    const selected = tab.dataset.task === task.id;
    tab.setAttribute("aria-selected", selected);
    tab.setAttribute("tabindex", selected ? 0 : -1);
    if (selected) at("task").setAttribute("aria-labelledby", tab.id);
  }
  at("task").replaceChildren(...shownView.elements);
  history.replaceState(null, "", `#${new URLSearchParams({ model: card.id, task: task.id })}`);
}

/** Return what a model was trained for, in a few words. */
function originOf(card) {
  if (card.task) return `fine-tuned: ${card.task.replaceAll("_", " ")}`;
  return card.sentence_vectors ? "vectors of sentences" : "pre-trained";
}

/** Show a model: its facts and its tasks. `wanted`: the id of a task; the first one if the model lacks it. */
function showModel(wanted) {
  const card = chosenCard();
  const offered = TASKS.filter((task) => task.offered(card));
  const facts = [originOf(card)];
  if (card.layers) facts.push(counted(card.layers, "layer"));
  facts.push(`${card.max_length} tokens`, `engine ${card.engine}`);
  if (card.language || card.languages.length) facts.push(`language ${card.language || card.languages[0]}`);
  at("facts").textContent = facts.join(" · ");
  document.title = `${card.id} – bertie`;
  const task = offered.find((each) => each.id === wanted) ?? offered[0];
  const tabs = offered.map((each) => {
    const attributes = { type: "button", role: "tab", id: `tab-${each.id}`, "data-task": each.id, "aria-controls": "task" };
    const tab = html("button", attributes, each.name);
    tab.addEventListener("click", () => showTask(each));
    return tab;
  });
  at("tasks").replaceChildren(...tabs);
  roving(tabs, 1, offered.indexOf(task));
  showTask(task);
}

/** Return the model and the task that the address names. */
const place = () => new URLSearchParams(location.hash.slice(1));

async function loadModels() {
  at("problem").hidden = true;
  try {
    const found = await send("v1/models");
    if (found === null) return;
    const names = (list) => list.map((card) => card.id).join("\n");
    if (names(cards) !== names(found.answer.data)) views.clear();
    cards = found.answer.data;
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    if (error.status === 401) return askForKey();
    const place = at("access").hidden ? "problem" : "key-problem";
    at(place).textContent = error.message;
    at(place).hidden = false;
    return;
  }
  at("access").hidden = true;
  document.body.removeAttribute("data-locked");
  at("model").replaceChildren(...cards.map((card) => html("option", { value: card.id }, card.id)));
  showPlace();
}

function showPlace() {
  const wanted = cards.findIndex((card) => card.id === place().get("model"));
  at("model").selectedIndex = Math.max(wanted, 0);
  showModel(place().get("task"));
}

/** Show the screen for the key. If a key was given, it is wrong. */
function askForKey() {
  document.body.setAttribute("data-locked", "");
  at("access").hidden = false;
  at("problem").hidden = true;
  at("key-problem").hidden = !key;
  at("key-problem").textContent = key ? "The server does not accept this key. Check it for missing characters." : "";
  at("key").setAttribute("aria-invalid", Boolean(key));
  at("key").focus();
  at("key").select();
}

at("model").addEventListener("change", () => showModel(shownView?.task.id));
at("access").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value.trim();
  if (/^[!-~]+$/.test(key)) loadModels();
  else askForKey(); // a header cannot hold it
});
window.addEventListener("hashchange", () => cards.length && showPlace());
if (NEEDS_KEY) askForKey();
else loadModels();
