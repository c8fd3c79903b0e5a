// Figures as people read them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(number) {
  return WHOLE.format(number);
}

/// A rate in events a second.
export function rate(number) {
  return number > 0 && number < 10 ? number.toFixed(1) : WHOLE.format(number);
}

export function percent(share) {
  return share > 0 && share < 0.01 ? "< 1 %" : Math.round(share * 100) + " %";
}

export function bytes(number) {
  const units = ["bytes", "KB", "MB", "GB", "TB", "PB"];
  let step = 0;
  while (number >= 1000 && step < units.length - 1) {
    number /= 1000;
    step += 1;
  }
  return (step === 0 || number >= 100 ? Math.round(number) : number.toFixed(1)) + " " + units[step];
}

/// A number of seconds.
export function duration(secs) {
  if (secs < 1) return "0 s";
  if (secs < 90) return Math.round(secs) + " s";
  if (secs < 5400) return Math.round(secs / 60) + " min";
  if (secs < 129600) return Math.round(secs / 3600) + " h";
  return Math.round(secs / 86400) + " days";
}

/// The time of day, and the day if it is more than half a day away.
export function clock(secs, now) {
  const at = new Date(secs * 1000);
  const time = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return Math.abs(now - secs) < 43200 ? time : at.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) + " " + time;
}

/// A time of the event log: of day with seconds, and the day if it is another one.
export function stamp(text) {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return String(text);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : at.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) + " " + time;
}

/// A number of microseconds.
export function millis(us) {
  return us < 1000 ? us / 1000 + " ms" : us < 1e6 ? Math.round(us / 100) / 10 + " ms" : us / 1e6 + " s";
}
