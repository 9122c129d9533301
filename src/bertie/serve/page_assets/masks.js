// Masked words: candidates for every mask, and a click that puts one in.

/** Put a candidate in the place of a mask. `before` and `after` are the text around it. */
function withWord(before, candidate, after) {
  const begins = candidate.startsWith(" "); // else it continues the word before the mask
  const word = begins ? candidate.slice(1) : candidate;
  if (!begins) return before.trimEnd() + word + after;
  return before + (/[\p{L}\p{N}]$/u.test(before) ? " " : "") + word + after;
}

/** Return the text with its masks as numbered places. */
function maskedText(pieces, best) {
  const parts = pieces.flatMap((piece, number) => {
    if (number === 0) return [piece];
    const guess = html("span", { class: "guessed" }, best[number - 1].trim());
    const place = html("mark", { class: `place hue-${(number - 1) % HUES}` }, pieces.length > 2 ? [guess, html("sub", {}, String(number))] : [guess]);
    return [place, piece];
  });
  return html("p", { class: "text", dir: "auto" }, parts);
}

const maskTask = {
  id: "fill-mask",
  name: "Fill masks",
  path: "v1/fill-mask",
  about: (card) => `The model predicts the token at each ${card.mask_token}. Choose a candidate to put it in.`,
  offered: (card) => card.operations.includes("fill-mask"),
  build(card, run) {
    const mask = card.mask_token;
    const text = area(3);
    const most = html("input", { type: "number", min: 1, max: 100, value: 5 });
    const insert = html("button", { type: "button", class: "plain" }, `Insert ${mask}`);
    insert.addEventListener("click", () => {
      text.setRangeText(mask, text.selectionStart, text.selectionEnd, "end");
      text.dispatchEvent(new Event("input", { bubbles: true }));
      text.focus();
    });
    const put = (pieces, place, candidate) => {
      const join = (from, to) => pieces.slice(from, to).join(mask);
      text.value = withWord(join(0, place + 1), candidate, join(place + 1));
      text.dispatchEvent(new Event("input", { bubbles: true }));
      if (pieces.length > 2) run();
      return text.value;
    };
    return {
      fields: [field("Text", text), insert, field("Candidates per mask", most)],
      controls: { text, most },
      body: () => ({ inputs: [text.value], top_k: Number(most.value) || 5 }),
      show(answer, body, replace) {
        const pieces = body.inputs[0].split(mask);
        const best = answer.results[0].map(([first]) => first.text);
        const groups = answer.results[0].map((candidates, place) => {
          const entries = candidates.map(({ token, text, probability }) => ({ label: text.trim() || token, share: probability, title: token }));
          const choose = (number) => {
            const complete = put(pieces, place, candidates[number].text);
            if (pieces.length === 2) replace([html("p", { class: "text", dir: "auto" }, complete)], "All masks are filled.");
          };
          const title = html("h4", { class: `hue-${place % HUES}` }, groupsTitle(place, answer.results[0].length));
          return html("section", {}, [title, bars(entries, choose)]);
        });
        return [maskedText(pieces, best), html("div", { class: "groups" }, groups)];
      },
      said: (answer) => answer.results[0].map(([first], number) => `mask ${number + 1}: ${first.text.trim()}`).join(", "),
    };
  },
};

const groupsTitle = (place, count) => (count === 1 ? "Candidates" : `Mask ${place + 1}`);
