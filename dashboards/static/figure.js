/* Draws a panel's figure: fills in what its choices say, dresses it in the page's colours, and keeps zoom and selection.
   Text from runs never becomes HTML here: tooltips are built with textContent, and plotly's own markup was escaped in Python. */
"use strict";
const Craft = window.Craft = window.Craft || {};

Craft.element = function (tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined).map(child => child instanceof Node ? child : String(child)));
  return made;
};

/* A figure is a template: {"$": "x/{x}"} stands for values["x/<choice x>"], with "pick" only for the entries at those indices. */
Craft.resolve = function (template, values, chosen, palette) {
  const fill = key => key.replace(/\{(\w+)\}/g, (all, name) => name in chosen ? chosen[name] : all);
  const walk = (node, key) => {
    if (typeof node === "string") return (key === "color" || key === "bgcolor") && node in palette ? palette[node] : node;
    if (node === null || typeof node !== "object") return node;
    if (Array.isArray(node)) return node.length && typeof node[0] === "object" && node[0] !== null ? node.map(one => walk(one, key)) : node;
    if ("$" in node) {
      const found = values[fill(node.$)];
      if (found === undefined) return undefined;
      if (node.pick === undefined) return found && found.constructor === Object ? walk(found, key) : found;
      return (values[fill(node.pick)] || []).map(index => found[index]);
    }
    const made = {};
    for (const [name, value] of Object.entries(node)) {
      const resolved = walk(value, name);
      if (resolved !== undefined) made[name] = resolved;
    }
    return made;
  };
  return walk(template, "");
};

Craft.palette = function () {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["ink", "soft", "panel", "grid", "line", "accent"].map(name => [name, style.getPropertyValue("--" + name).trim()]));
};

Craft.layout = function (given, palette, width, wide) {
  const base = {
    gridcolor: palette.grid, zerolinecolor: palette.grid, linecolor: palette.line, tickcolor: palette.line, automargin: true, ticks: "outside", ticklen: 4,
    exponentformat: "SI", zeroline: false,
  };
  const narrow = width < 520, onTop = (given.xaxis || {}).side === "top";
  const axis = one => {
    const made = {...base, ...one};
    // few ticks: all nine labels of a decade would lie over each other
    if (made.type === "log") Object.assign(made, {tickformat: "~s", nticks: narrow ? 3 : 5});
    delete made.maxallowed;
    return made;
  };
  return {
    autosize: true, height: wide && !narrow ? 480 : 380, uirevision: "keep", selectionrevision: "keep",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif", size: narrow ? 11 : 12.5, color: palette.ink},
    margin: {l: narrow ? 42 : 58, r: narrow && !onTop ? 14 : 44, t: onTop ? 40 : 34, b: 46},
    legend: {orientation: "h", x: 0, xanchor: "left", y: 1.01, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)"},
    hoverlabel: {bgcolor: palette.panel, bordercolor: palette.line, font: {color: palette.ink}},
    modebar: {orientation: "v", bgcolor: "rgba(0,0,0,0)", color: palette.soft, activecolor: palette.accent},
    newselection: {line: {color: palette.ink, width: 1, dash: "dot"}}, activeselection: {fillcolor: palette.accent, opacity: 0.06},
    ...given, xaxis: axis(given.xaxis || {}), yaxis: axis(given.yaxis || {}),
  };
};

/* How far the vertical axis may reach. Two seeds give intervals far beyond any score: the axis follows the points, and the bars are
   cut at its edge. It ends at `most` if that is given, with room for half a mark in a figure of `height` pixels, of which some 130
   are no plot. */
Craft.clip = function (data, most, height) {
  const values = data.flatMap(trace => trace.y || []).filter(value => typeof value === "number");
  const low = Math.min(...values), high = Math.max(...values), spread = high - low || 1;
  return values.length ? {clipmin: low - spread, clipmax: Math.min(high + spread, most ? most + 8 * spread / (height - 130) : Infinity)} : {};
};

/* One drawn figure: keeps its spec and its choices over updates. `on` has hover(id, event), leave(), click(id), keep(id), select(ids or null). */
Craft.Figure = class {
  constructor(holder, on, wide) {
    this.holder = holder;
    this.on = on;
    this.wide = wide;
    this.chosen = {};
    this.selected = null;
    this.points = [];
    this.drawn = false;
  }

  choose(spec) {
    for (const choice of spec.choices || []) {
      const known = choice.options.map(option => option.value);
      if (!known.includes(this.chosen[choice.name])) this.chosen[choice.name] = choice.value;
    }
  }

  async update(spec) {
    this.spec = spec;
    const palette = Craft.palette();
    const figure = Craft.resolve(spec.figure, spec.values, this.chosen, palette);
    const width = this.holder.clientWidth;
    const data = this.data = figure.data;
    for (const trace of data) this.dress(trace);
    const layout = Craft.layout(figure.layout || {}, palette, width, this.wide);
    // other axes mean another picture: a zoom of the old one would be nonsense there
    layout.uirevision = layout.selectionrevision = JSON.stringify(this.chosen);
    this.shapes = layout.shapes || [];
    if (layout.yaxis.type !== "log") layout.yaxis.autorangeoptions = Craft.clip(data, (figure.layout.yaxis || {}).maxallowed, layout.height);
    this.holder.style.minHeight = layout.height + "px";  // plotly fits the plot to its place when the window changes
    layout.shapes = [...this.shapes, ...this.baseline()];
    layout.showlegend = data.filter(trace => trace.showlegend !== false).length > 1;
    const config = {
      displaylogo: false, responsive: true, scrollZoom: false, plotlyServerURL: "", doubleClickDelay: 350,
      modeBarButtons: [["zoom2d", "pan2d", "select2d", "lasso2d"], ["resetScale2d", "toImage"]],
      displayModeBar: width >= 520 ? "hover" : false,
    };
    await Craft.plotly();
    await Plotly.react(this.holder, data, layout, config);
    if (!this.drawn) this.listen();
    this.drawn = true;
    this.drew();
  }

  dress(trace) {
    // a kind of mark that does not occur (no trial stopped) needs no entry in the legend
    if (trace.x && trace.x.length === 0) trace.showlegend = false;
    if (trace.error_y && !(trace.error_y.array || []).some(value => value !== null)) delete trace.error_y;
    if (trace.customdata) trace.hoverinfo = "none";
    if (trace.name === "selected") [trace.x, trace.y] = this.linesInFocus();
    if (trace.mode && trace.mode.includes("text") && this.holder.clientWidth < 520) {
      if (trace.mode === "text") trace.visible = false;
      trace.mode = "markers";
    }
    if (trace.customdata && trace.mode === "markers") {
      // plotly's own dimming while one drags would stay behind: `dim` does it
      const opacity = trace.marker && trace.marker.opacity !== undefined ? trace.marker.opacity : 1;
      trace.selected = {marker: {opacity}};
      trace.unselected = {marker: {opacity}};
    }
  }

  /* Dims the points that are not selected, by a class on their elements. Plotly would redraw all points, which takes a fifth of a
     second for a thousand. */
  dim(ids) {
    for (const [element, id] of this.points) element.classList.toggle("dim", Boolean(ids) && !ids.has(id));
  }

  /* Finds the elements of points that stand for a configuration. Plotly binds to each element its index in the trace. */
  findPoints() {
    this.points = [];
    for (const group of this.holder.querySelectorAll(".scatterlayer .trace")) {
      const trace = group.__data__ && group.__data__[0] && group.__data__[0].trace;
      if (!trace || trace.mode !== "markers" || !trace.customdata) continue;
      for (const element of group.querySelectorAll(".points > path")) {
        const id = element.__data__ && trace.customdata[element.__data__.i];
        if (typeof id === "string") this.points.push([element, id]);
      }
    }
  }

  select(ids) {
    this.selected = ids;
    if (!this.drawn) return;
    this.dim(ids);
    this.drawFocus();
    if (!ids && (this.holder.layout.selections || []).length) Plotly.relayout(this.holder, {selections: []});
  }

  /* Draws the lines of the configurations that are selected or kept again, where a figure has a trace for them. */
  drawFocus() {
    const place = this.data.findIndex(trace => trace.name === "selected");
    if (place < 0) return false;
    const [x, y] = this.linesInFocus();
    Plotly.restyle(this.holder, {x: [x], y: [y]}, [place]);
    return true;
  }

  linesInFocus() {
    const lines = [[], []], inFocus = new Set([...this.selected || [], this.kept]);
    for (const trace of this.data) {
      if (!trace.customdata || !trace.mode.includes("lines")) continue;
      trace.customdata.forEach((id, index) => {
        const ends = id === null && lines[0].length && lines[0].at(-1) !== null;
        if (id !== null ? inFocus.has(id) : ends) { lines[0].push(trace.x[index]); lines[1].push(trace.y[index]); }
      });
    }
    return lines;
  }

  /* Keeps a configuration in focus: its lines are drawn again, or a line is drawn at its value, to compare others with. */
  keep(id) {
    this.kept = id;
    if (this.drawn && !this.drawFocus()) Plotly.relayout(this.holder, {shapes: [...this.shapes, ...this.baseline()]});
  }

  baseline() {
    for (const trace of this.data.some(trace => trace.name === "selected") ? [] : this.data) {
      const index = this.kept && trace.mode === "markers" && trace.customdata ? trace.customdata.indexOf(this.kept) : -1;
      if (index < 0 || trace.y[index] === null) continue;
      return [{type: "line", xref: "paper", x0: 0, x1: 1, y0: trace.y[index], y1: trace.y[index], layer: "below", line: {color: Craft.palette().accent, width: 1.2, dash: "dash"}}];
    }
    return [];
  }

  drew() {
    // papers write 7B, and plotly 7G
    for (const tick of this.holder.querySelectorAll(".xtick text, .ytick text")) if (/\dG$/.test(tick.textContent)) tick.textContent = tick.textContent.replace("G", "B");
    this.placeNames();
    this.findPoints();
    this.dim(this.selected);
    this.ring();
  }

  /* Shows the names that cover no mark, other name or frame. Each stands over its mark, or else under it; pointing at a mark shows
     the name that found no room. */
  placeNames() {
    const names = [...this.holder.querySelectorAll(".textpoint text")];
    if (!names.length) return;
    const frame = this.holder.querySelector(".nsewdrag").getBoundingClientRect();
    const taken = [...this.holder.querySelectorAll(".scatterlayer .points path")].map(mark => mark.getBoundingClientRect());
    for (const name of names) name.style.translate = "";
    const boxes = names.map(name => name.getBoundingClientRect());
    names.forEach((name, index) => {
      const {left, top, width, height} = boxes[index], aside = width / 2 + 9, start = getComputedStyle(name).textAnchor === "start";
      const places = start ? [[5, 0], [5, -8], [5, 8], [5, -16], [5, 16]] : [[0, 0], [-aside, -4], [0, 2 * height], [aside, height], [-aside, 2 * height]];
      const free = places.find(([x, y]) => {
        const box = {left: left + x - 3, right: left + x + width + 3, top: top + y, bottom: top + y + height};
        const inside = box.left >= frame.left && box.right <= frame.right && box.top >= frame.top && box.bottom <= frame.bottom;
        return inside && !taken.some(other => other.left < box.right && other.right > box.left && other.top < box.bottom && other.bottom > box.top) && taken.push(box);
      });
      name.style.visibility = free ? "" : "hidden";
      if (free) name.style.translate = `${free[0]}px ${free[1]}px`;
    });
  }

  listen() {
    const first = event => event.points && event.points.find(point => typeof point.customdata === "string");
    this.holder.on("plotly_hover", event => { const point = first(event); if (point) this.on.hover(point.customdata, event.event); });
    this.holder.on("plotly_unhover", () => this.on.leave());
    this.holder.on("plotly_click", event => { const point = first(event); if (point) this.on.click(point.customdata); });
    this.holder.on("plotly_selected", event => {
      if (!event || !event.points) return;
      const ids = new Set(event.points.map(point => point.customdata).filter(id => typeof id === "string"));
      this.on.select(ids.size ? ids : null);
    });
    this.holder.on("plotly_deselect", () => this.on.select(null));
    this.holder.on("plotly_selecting", event => { if (event && event.points) this.dim(new Set(event.points.map(point => point.customdata))); });
    this.holder.on("plotly_relayout", () => this.ring());
    this.holder.on("plotly_afterplot", () => this.drew());
    if (!this.data.some(Craft.walks)) return;
    this.holder.tabIndex = 0;
    this.holder.addEventListener("keydown", event => { if (event.target === this.holder) this.press(event); });
    this.holder.addEventListener("blur", () => this.on.leave());
  }

  /* A ring around one configuration's point: an element over the plot, because redrawing thousands of points for it would be slow. */
  ring(id = this.ringed) {
    this.ringed = id;
    let mark = this.holder.querySelector(".ring");
    const full = this.holder._fullLayout;
    const at = id && full && full.xaxis ? this.position(id, full) : null;
    if (!at) { if (mark) mark.remove(); return; }
    if (!mark) { mark = Craft.element("div", {class: "ring", "aria-hidden": "true"}); this.holder.append(mark); }
    mark.style.left = at[0] + "px";
    mark.style.top = at[1] + "px";
  }

  position(id, full) {
    for (const trace of this.data || []) {
      if (trace.type !== "scatter" || trace.mode !== "markers" || !trace.customdata) continue;
      const index = trace.customdata.indexOf(id);
      if (index < 0 || trace.x[index] === null || trace.y[index] === null) continue;
      const x = full.xaxis.d2p(trace.x[index]), y = full.yaxis.d2p(trace.y[index]);
      if (!(x >= 0 && x <= full.xaxis._length && y >= 0 && y <= full.yaxis._length)) return null;
      return [x + full.xaxis._offset, y + full.yaxis._offset];
    }
    return null;
  }

  /* A figure's points by keyboard: left and right go along the horizontal axis, Enter keeps a point, Space selects it. */
  press(event) {
    const step = {ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity}[event.key];
    if (step === undefined && !(["Enter", " "].includes(event.key) && this.at)) return;
    event.preventDefault();
    if (step !== undefined) this.walk(step);
    else if (event.key === "Enter") this.on.keep(this.at);
    else {
      const chosen = new Set(this.selected || []);
      if (!chosen.delete(this.at)) chosen.add(this.at);
      this.on.select(chosen.size ? chosen : null);
    }
  }

  walk(step) {
    // the points in sight, each once, from left to right
    const places = new Map(this.points.map(([, id]) => [id, this.position(id, this.holder._fullLayout)]));
    const points = [...places].filter(([, place]) => place).sort(([, a], [, b]) => a[0] - b[0] || a[1] - b[1]);
    if (!points.length) return;
    const before = points.findIndex(([id]) => id === this.at);
    const next = before < 0 && Number.isFinite(step) ? (step > 0 ? 0 : points.length - 1) : before + step;
    const [id, [x, y]] = points[Math.max(0, Math.min(points.length - 1, next))];
    this.at = id;
    const box = this.holder.getBoundingClientRect();
    this.on.hover(id, {clientX: box.left + x, clientY: box.top + y});
  }
};

/* Whether a trace has points to walk along. */
Craft.walks = trace => trace.mode === "markers" && Boolean(trace.customdata);
