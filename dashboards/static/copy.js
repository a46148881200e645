/* Values as text: in a cell, and in the tables that are copied out (CSV, Markdown, LaTeX). */
"use strict";

Craft.thousands = new Intl.NumberFormat("en-US");  // made once: toLocaleString makes one at every call

Craft.millions = function (count) {
  if (count === null || count === undefined) return "";
  if (count < 1000) return String(count);
  if (count < 1e6) return (count / 1e6).toFixed(3) + "M";
  return String(Number((count / 1e6).toPrecision(3))) + "M";
};

Craft.shown = function (column, value) {
  if (value === null || value === undefined) return "";
  if (column.kind === "score") return value.toFixed(1);
  if (column.kind === "count") return Craft.thousands.format(value);
  if (column.kind === "number" && typeof value === "number") return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
  return String(value);
};

/* A test for cells: whether a cell has the best value of its column among some rows, where the column has a better direction.
   A configuration that is not complete takes no part, because its value is over fewer tasks or seeds. */
Craft.best = function (table, rows) {
  const ranked = rows.filter(row => table.complete && table.complete[row]);
  const best = table.columns.map(column => {
    if (!column.better || ranked.length < 2) return null;
    const values = ranked.map(row => column.values[row]).filter(value => value !== null);
    if (!values.length) return null;
    return values.reduce((a, b) => column.better === "maximize" ? Math.max(a, b) : Math.min(a, b));
  });
  return (index, row) => best[index] !== null && table.complete[row] && table.columns[index].values[row] === best[index];
};

Craft.copies = {
  CSV(table, rows) {
    // a text that a spreadsheet would take for a formula is quoted as text
    const cell = value => {
      let text = value === null || value === undefined ? "" : String(value);
      if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = "'" + text;
      return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
    };
    const ends = table.low && table.low.some(value => value !== null) ? [["score_low", table.low], ["score_high", table.high]] : [];
    const names = [...table.columns.map(column => column.key.replace(/^[pm]\./, "")), ...ends.map(end => end[0])];
    const lines = rows.map(row => [...table.columns.map(column => column.values[row]), ...ends.map(end => end[1][row])].map(cell).join(","));
    return [names.map(cell).join(","), ...lines].join("\n") + "\n";
  },

  Markdown(table, rows) {
    const best = Craft.best(table, rows);
    const escape = text => text.replace(/([\\|`*_<>\[\]])/g, "\\$1").replace(/\s+/g, " ");
    const lines = rows.map(row => table.columns.map((column, index) => {
      const text = escape(Craft.cell(table, column, row));
      return best(index, row) ? `**${text}**` : text;
    }));
    const rule = table.columns.map(column => column.kind === "text" ? "---" : "---:");
    return [table.columns.map(column => escape(column.label)), rule, ...lines].map(cells => `| ${cells.join(" | ")} |`).join("\n") + "\n";
  },

  /* As the paper sets its tables: booktabs, parameters in millions, scores with one digit, the best of each column bold. */
  LaTeX(table, rows) {
    const special = {"\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "$": "\\$", "&": "\\&", "#": "\\#", "%": "\\%", "_": "\\_", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}", ">": "\\textgreater{}", "·": "$\\cdot$"};
    const escape = text => text.replace(/[\\{}$&#%_~^<>·]/g, sign => special[sign]).replace(/\s+/g, " ");
    const best = Craft.best(table, rows);
    const lines = rows.map(row => table.columns.map((column, index) => {
      const value = column.values[row];
      if (value === null || value === undefined) return "--";
      const text = column.key === "m.trainable_parameters" ? Craft.millions(value) : escape(Craft.shown(column, value));
      const half = Craft.half(table, column, row);
      return (best(index, row) ? `\\textbf{${text}}` : text) + (half ? `$_{\\pm${half}}$` : "");
    }).join(" & ") + " \\\\");
    const align = table.columns.map(column => column.kind === "text" ? "l" : column.kind === "score" ? "c" : "r").join(" ");
    const heads = table.columns.map(column => `\\textbf{${escape(column.label)}}`).join(" & ");
    return ["\\begin{tabular}{@{}" + align + "@{}}", "\\toprule", heads + " \\\\", "\\midrule", ...lines, "\\bottomrule", "\\end{tabular}"].join("\n") + "\n";
  },
};

/* Half of a score's interval as text, empty where there is none. */
Craft.half = function (table, column, row) {
  const value = column.values[row];
  if (column.key !== "m.score" || !table.low || table.low[row] === null || value === null) return "";
  return Math.max(table.high[row] - value, value - table.low[row]).toFixed(1);
};

/* A cell's text; a score with an interval says how wide it is. */
Craft.cell = function (table, column, row) {
  const half = Craft.half(table, column, row);
  return Craft.shown(column, column.values[row]) + (half ? ` ± ${half}` : "");
};

/* Whether the text is on the clipboard now. */
Craft.copyText = async function (text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // frames and old browsers without a clipboard: the selection of a hidden field is copied instead
    const field = Craft.element("textarea", {class: "visually-hidden", "aria-hidden": "true"});
    field.value = text;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    return copied;
  }
};
