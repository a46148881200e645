/* The card of the configuration in focus, with the commands for it, and two pinned configurations side by side. */
"use strict";

/* Where commands work, if that is known. */
Craft.place = folder => folder ? Craft.element("p", {class: "hint"}, "Run in ", Craft.element("code", {}, folder)) : "";

/* A command to read and to copy; the page runs none. */
Craft.command = function (purpose, text) {
  const make = Craft.element;
  const button = make("button", {type: "button", class: "quiet", "aria-label": `Copy: ${text}`, onclick: async () => {
    button.textContent = await Craft.copyText(text) ? "Copied" : "Select the text";
    setTimeout(() => { button.textContent = "Copy"; }, 3000);
  }}, "Copy");
  return make("div", {class: "command"}, make("span", {}, purpose), button, make("code", {}, text));
};

Object.assign(Craft.Page.prototype, {
  card(id, why) {
    const about = this.about(id);
    if (!about || !this.cardBox) return false;
    const make = Craft.element;
    const [title, lines, row, rest] = about;
    const parts = [why ? make("p", {class: "hint"}, why + ".") : null, make("h4", {}, title)].filter(Boolean);
    if (row !== null) {
      const table = this.table.data;
      if (table.link[row]) parts.push(make("a", {href: table.link[row], target: "_blank", rel: "noopener noreferrer"}, "Show it in MLflow ↗"));
      else parts.push(make("p", {class: "hint"}, "Configuration ", make("code", {}, table.id[row])));
      parts.push(make("button", {type: "button", class: "quiet", "aria-pressed": String(this.beside === id), onclick: () => this.putBeside(id)}, "Compare with another"));
      if (this.beside === id) parts.push(make("p", {class: "hint"}, "Now click another point, or a name in the table."));
    }
    parts.push(this.lines(lines));
    if (rest.length) parts.push(make("details", {}, make("summary", {}, "More"), this.lines(rest)));
    const commands = row === null ? [] : this.table.data.commands[row];
    if (commands.length) parts.push(Craft.place(this.table.data.folder[row]), ...commands.map(command => Craft.command(...command)));
    if (why) parts.push(make("p", {class: "hint"}, "Click a point, or a name in the table, to see another."));
    this.cardBox.replaceChildren(...parts);
    return true;
  },

  /* Keeps a configuration as the first of two; the one that is pinned next is the second. A second press takes it back. */
  putBeside(id) {
    this.beside = this.beside === id ? null : id;
    this.pin(id, false);
    const button = this.cardBox.querySelector("button[aria-pressed]");
    if (button) button.focus();
  },

  showPair(panel = this.panels.get("pair"), pairs = panel && panel.pairs) {
    if (!panel) return;
    panel.pairs = pairs;
    const rows = this.table && this.table.data ? [this.beside, this.pinned].map(id => this.table.index.get(id)) : [];
    panel.box.hidden = !pairs || rows.length < 2 || rows.includes(undefined) || rows[0] === rows[1];
    if (panel.box.hidden) return panel.content.replaceChildren(Craft.element("p", {class: "empty"}, "Press Compare with another at a point."));
    const make = Craft.element, table = this.table.data;
    const places = rows.map(row => pairs.id.indexOf(table.id[row]));
    if (!places.includes(-1) && places[0] > places[1]) for (const list of [rows, places]) list.reverse();
    const [first, second] = rows.map(row => pairs.sides[table.id[row]]);
    const words = first && second && {first: first[0], a: first[1], second: second[0], b: second[1]};
    const said = !words ? pairs.incomplete : places.includes(-1) ? pairs.beyond : pairs.said[places[0]][places[1] - places[0] - 1];
    const columns = table.columns.filter(column => !column.more && column.key !== "label" && rows.some(row => column.values[row] !== null));
    const cells = column => rows.map(row => make("td", {class: column.kind === "text" ? "wrap" : "num"}, Craft.cell(column, row)));
    panel.content.replaceChildren(
      make("p", {class: "said", role: "status"}, said),
      make("div", {class: "scroll"}, make("table", {class: "pair"},
        make("thead", {}, make("tr", {}, make("th", {}), ...rows.map(row => make("th", {scope: "col", class: "wrap"}, table.label[row])))),
        make("tbody", {}, ...columns.map(column => make("tr", {}, make("th", {scope: "row"}, column.label), ...cells(column)))))),
      words ? Craft.command("Compare them, row by row", pairs.command.replace(/\{(\w+)\}/g, (_, name) => words[name])) : "",
      words ? Craft.place(table.folder[rows[0]]) : "",
      make("button", {type: "button", class: "quiet", onclick: () => { this.beside = null; this.pin(this.pinned, false); }}, "Show one again"));
  },
});
