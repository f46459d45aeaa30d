// Slides one by one: arrows, Page Up and Down, Home and End, or the two buttons; the address holds the number.
const slides = [...document.querySelectorAll("section")], said = document.querySelector("output");
const asked = () => Math.min(slides.length, Math.max(1, parseInt(location.hash.slice(1)) || 1));
function show(number) {
  slides.forEach((slide, i) => { slide.hidden = i + 1 !== number; });
  said.textContent = number + " / " + slides.length;
  if (number !== asked() || !location.hash) history.replaceState(null, "", "#" + number);
  scrollTo(0, 0);
}
const go = (by) => show(Math.min(slides.length, Math.max(1, slides.findIndex((slide) => !slide.hidden) + 1 + by)));
const KEYS = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1, Home: -Infinity, End: Infinity };
addEventListener("keydown", (event) => {
  if (!(event.key in KEYS) || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  go(KEYS[event.key]);
});
addEventListener("hashchange", () => show(asked()));
document.querySelectorAll("nav button").forEach((button) => button.addEventListener("click", () => go(+button.value)));
document.body.className = "one-by-one";
show(asked());
