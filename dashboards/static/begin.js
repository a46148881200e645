/* How the page starts: its data and plotly, from the server or out of the file itself. */
"use strict";

/* Text from gzip in base64: how the one-file page carries its data and plotly. */
Craft.inflate = async function (encoded) {
  const bytes = Uint8Array.from(atob(encoded.trim()), sign => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
};

/* A promise of plotly. It is by far the largest script, so everything else begins without it. */
Craft.plotly = function () {
  Craft.plotlyComes = Craft.plotlyComes || new Promise((here, failed) => {
    const script = document.createElement("script");
    const packed = document.getElementById("plotly");
    script.addEventListener("load", here);
    script.addEventListener("error", () => failed(new Error("The script that draws could not be loaded. Reload the page.")));
    if (packed) {
      Craft.inflate(packed.textContent).then(text => { script.textContent = text; document.head.append(script); here(); }, failed);
    } else {
      script.src = document.getElementById("plotly-address").href;
      document.head.append(script);
    }
  });
  return Craft.plotlyComes;
};

Craft.begin = async function () {
  const packed = document.getElementById("content");
  let source;
  if (packed) {
    try {
      source = new Craft.FileSource(JSON.parse(await Craft.inflate(packed.textContent)));
    } catch (error) {
      document.getElementById("waiting").textContent = `This page could not be opened (${error.message}); it needs a browser from 2023 or later.`;
      return;
    }
  } else {
    source = new Craft.LiveSource();
  }
  Craft.plotly().catch(() => {});  // the panel that draws first reports it
  Craft.page = new Craft.Page(source);
  await Craft.page.start();
};
document.addEventListener("DOMContentLoaded", Craft.begin);
