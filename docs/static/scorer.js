// The search shows how-to pages and tutorials before explanations, and records and raw figures last.
var Scorer = {
  score: function (result) {
    var page = result[0];
    var weights = [
      [/^(start|tutorials|howto)\//, 12], [/^explain\//, 6], [/^reference\//, 3],
      [/^contribute\/decisions\//, -20], [/^(evidence\/|performance)/, -12],
    ];
    var added = 0;
    weights.forEach(function (pair) { if (pair[0].test(page)) { added = pair[1]; } });
    return result[4] + added;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
