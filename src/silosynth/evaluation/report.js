"use strict";
// All of this is convenience: without scripts the page says the same.

// Columns: only those whose name or silo contains what was typed.
const box = document.getElementById("find");
const items = [...document.querySelectorAll("[data-find]")];
box.closest("p").hidden = false;
box.addEventListener("input", () => {
  const typed = box.value.trim().toLowerCase();
  for (const item of items) item.hidden = !item.dataset.find.toLowerCase().includes(typed);
  const rows = items.filter(item => item.localName === "tr");
  document.getElementById("found").textContent =
    typed && `${rows.filter(row => !row.hidden).length} of ${rows.length} columns`;
  rows[0].closest("details").open = typed !== "";
});

// Heat maps: names and value of the cell that is pointed at or tapped, also where cells are pixels of an image.
for (const figure of document.querySelectorAll("[data-heat]")) {
  const image = figure.querySelector("image"), readout = figure.querySelector(".readout");
  const cell = image ? pixelReader(figure.querySelector("svg"), image) : event => event.target.querySelector?.("title")?.textContent;
  readout.hidden = false;
  for (const kind of ["pointermove", "click"])
    figure.addEventListener(kind, event => { readout.textContent = cell(event) || "\u00a0"; });
}

function pixelReader(svg, image) {
  const { names, scale } = JSON.parse(svg.dataset.cells), picture = new Image();
  picture.src = image.getAttribute("href");
  const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 })
    .getContext("2d", { willReadFrequently: true });
  return event => {
    const box = image.getBoundingClientRect(), n = picture.naturalWidth, merged = Math.ceil(names.length / n);
    const [j, i] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height]
      .map(share => Math.floor(share * n));
    if (!(i >= 0 && i < n && j >= 0 && j < n)) return "";
    context.clearRect(0, 0, 1, 1);
    context.drawImage(picture, -j, -i);
    const [red, , blue, alpha] = context.getImageData(0, 0, 1, 1).data;
    const value = alpha / 255 * scale * (red > blue ? -1 : 1);
    const [row, column] = [i, j].map(k => names[k * merged] + (merged > 1 ? " …" : ""));
    return i === j ? row : `${row} × ${column}: ${alpha === 64 ? "–" : "about " + value.toFixed(2)}`;
  };
}

// Paper shows what is folded on the screen.
const folded = [...document.querySelectorAll("details")];
let shut = [];
addEventListener("beforeprint", () => { shut = folded.filter(one => !one.open); shut.forEach(one => { one.open = true; }); });
addEventListener("afterprint", () => { shut.forEach(one => { one.open = false; }); });
