// Runs before the first paint, so that a page in the dark theme does not flash white.
(() => {
  const kept = localStorage.getItem("tutti-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
