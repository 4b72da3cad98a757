"use strict";
// Keys only move about; deciding is always a button.
const note = document.getElementById("note");
// One stop for each run of changed lines; a new file is one run.
const stops = [...document.querySelectorAll(".hunk tr:not(.same)")].filter((row) => {
  const before = row.previousElementSibling;
  return !before || before.classList.contains("same");
});
for (const row of stops) row.tabIndex = -1;
let at = -1;

function go(step) {
  if (!stops.length) return;
  at = Math.min(stops.length - 1, Math.max(0, at + step));
  const row = stops[at];
  row.focus({ preventScroll: true });
  if (row.previousElementSibling) row.scrollIntoView({ block: "center" });
  else row.closest("article").scrollIntoView({ block: "start" });
}

const places = { g: "gate", r: "repro", s: "time" };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === note) {
    if (event.key === "Escape") note.blur();
    return;
  }
  if (event.key === "n") go(1);
  else if (event.key === "p") go(-1);
  else if (event.key === "d") note.focus();
  else if (places[event.key]) document.getElementById(places[event.key]).scrollIntoView({ block: "start" });
  else return;
  event.preventDefault();
});

function grow() {
  note.rows = Math.min(6, Math.max(1, note.value.split("\n").length));
}
note.addEventListener("input", grow);
grow();
