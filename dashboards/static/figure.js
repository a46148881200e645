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
  const of = name => style.getPropertyValue("--" + name).trim();
  return {ink: of("ink"), soft: of("soft"), panel: of("panel"), grid: of("grid"), line: of("line"), accent: of("accent")};
};

Craft.layout = function (given, palette, width, wide) {
  const base = {
    gridcolor: palette.grid, zerolinecolor: palette.grid, linecolor: palette.line, tickcolor: palette.line, automargin: true, ticks: "outside", ticklen: 4,
    exponentformat: "SI", zeroline: false,
  };
  const narrow = width < 520;
  const axis = one => {
    const made = {...base, ...one};
    // all nine labels of a decade would lie over each other
    if (made.type === "log") Object.assign(made, {tickformat: "~s", dtick: narrow ? 1 : "D2"});
    return made;
  };
  return {
    autosize: true, height: narrow ? 330 : wide ? 480 : 380, uirevision: "keep", selectionrevision: "keep",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: {family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif", size: narrow ? 11 : 12.5, color: palette.ink},
    margin: {l: narrow ? 42 : 58, r: 14, t: 34, b: 46},
    legend: {orientation: "h", x: 0, xanchor: "left", y: 1.01, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)"},
    hoverlabel: {bgcolor: palette.panel, bordercolor: palette.line, font: {color: palette.ink}},
    modebar: {bgcolor: "rgba(0,0,0,0)", color: palette.soft, activecolor: palette.accent},
    newselection: {line: {color: palette.ink, width: 1, dash: "dot"}}, activeselection: {fillcolor: palette.accent, opacity: 0.06},
    ...given, xaxis: axis(given.xaxis || {}), yaxis: axis(given.yaxis || {}),
  };
};

/* Two seeds give intervals far beyond any score. The axis then follows the points, and the bars are cut at its edge. */
Craft.rangeOf = function (data) {
  const bars = data.filter(trace => trace.error_y);
  const values = data.flatMap(trace => (trace.y || []).filter(value => typeof value === "number"));
  if (!bars.length || !values.length) return undefined;
  const end = (trace, name, way) => trace.y.map((value, index) => value === null ? value : value + way * ((trace.error_y[name] || [])[index] || 0)).filter(value => value !== null);
  const low = Math.min(...values), high = Math.max(...values), spread = high - low || 1, edge = 0.06 * spread;
  const lowest = Math.min(low, ...bars.flatMap(trace => end(trace, "arrayminus", -1))), highest = Math.max(high, ...bars.flatMap(trace => end(trace, "array", 1)));
  return [Math.max(lowest, low - spread) - edge, Math.min(highest, high + spread) + edge];
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
    this.choose(spec);
    const palette = Craft.palette();
    const figure = Craft.resolve(spec.figure, spec.values, this.chosen, palette);
    const width = this.holder.clientWidth;
    const data = figure.data;
    for (const trace of data) this.dress(trace);
    this.data = data;
    const layout = Craft.layout(figure.layout || {}, palette, width, this.wide);
    // other axes mean another picture: a zoom of the old one would be nonsense there
    layout.uirevision = layout.selectionrevision = JSON.stringify(this.chosen);
    if (layout.yaxis.type !== "log" && !layout.yaxis.range) layout.yaxis.range = this.range(Craft.rangeOf(data), layout.uirevision);
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

  /* The vertical range to ask plotly for: the wanted one, unless a person has zoomed since. Plotly itself keeps a zoom only while
     the range that it is given stays the same, and a running sweep's does not. */
  range(wanted, picture) {
    if (picture !== this.picture) this.given = new Set();
    const axis = this.drawn && picture === this.picture ? this.holder.layout.yaxis : null;
    this.picture = picture;
    if (axis && axis.range && !axis.autorange && !this.given.has(String(axis.range))) return [...axis.range];
    if (wanted) this.given.add(String(wanted));
    return wanted;
  }

  dress(trace) {
    // a kind of mark that does not occur (no trial stopped) needs no entry in the legend
    if (trace.x && trace.x.length === 0) trace.showlegend = false;
    if (trace.error_y && !(trace.error_y.array || []).some(value => value !== null)) delete trace.error_y;
    if (trace.customdata) trace.hoverinfo = "none";
    if (trace.mode && trace.mode.includes("text") && this.holder.clientWidth < 520) trace.mode = "markers";
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
    if (!ids && (this.holder.layout.selections || []).length) Plotly.relayout(this.holder, {selections: []});
  }

  drew() {
    this.findPoints();
    this.dim(this.selected);
    this.placeRing();
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
    this.holder.on("plotly_relayout", () => this.placeRing());
    this.holder.on("plotly_afterplot", () => this.drew());
    if (this.data.some(Craft.walks)) new Craft.Keys(this);
  }

  /* A ring around one configuration's point: an element over the plot, because redrawing thousands of points for it would be slow. */
  ring(id) {
    this.ringed = id;
    this.placeRing();
  }

  placeRing() {
    let mark = this.holder.querySelector(".ring");
    const full = this.holder._fullLayout;
    const at = this.ringed && full && full.xaxis ? this.position(this.ringed, full) : null;
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
};
