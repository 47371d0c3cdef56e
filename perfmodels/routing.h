#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

/// How many different experts of a layer some row of an iteration went through.
struct TouchedExperts {
  std::int64_t rows = 1;  ///< of the iteration
  double mean = 0;        ///< over layers and iterations
};

/// What a run has counted, a routing file's content.
struct RecordedRouting {
  std::string model;
  std::int64_t rows = 0;  ///< that were counted in each layer, all iterations together
  /// Of each layer: how often each of its experts was chosen. A layer with one FFN has none.
  std::vector<std::vector<std::int64_t>> layers;
  std::vector<TouchedExperts> touched_by_rows;  ///< rising in rows
};

/// Which experts tokens choose: each row k different ones of a layer's E. Rows choose independently
/// of each other, but for what a recording says of them.
class Routing {
 public:
  /// Each expert as likely as another.
  static Routing uniform(std::int64_t num_experts, std::int64_t experts_per_token);
  /// In every layer expert i has the weight 1 / (i + 1)^exponent. A row draws one after the other,
  /// each by the weights of those that it has not drawn yet. Exponent 0 is uniform().
  static Routing zipf(double exponent, std::int64_t num_experts, std::int64_t experts_per_token);
  /// As counted: the chance of expert i is its share of a layer's choices, k times. Layers without
  /// counts have no experts, and take no part in means. Some layer has counts.
  static Routing recorded(const RecordedRouting& recorded, std::int64_t experts_per_token);

  std::int64_t num_experts() const;
  std::int64_t experts_per_token() const;

  /// Mean over the layers of the number of experts that at least one of `rows` rows is expected to
  /// go through: the sum of 1 - (1 - p)^rows. Uniform: E (1 - (1 - k/E)^rows). After a recording
  /// the share of experts that rows miss is m^q, where m is that of independent rows, and q follows
  /// from touched_by_rows: rows of one text choose alike. q is 1 for one row, linear in log(rows)
  /// between recorded numbers of rows, and constant behind the last one.
  double experts_touched(double rows) const;
  /// Rows that one of the experts touched computes, in the mean: rows k / experts_touched(rows).
  double rows_of_an_expert(double rows) const;

  /// The chance that a row's k experts of a layer have this one among them; the sum over a layer is
  /// k, of one without experts 0.
  double chance(std::int64_t layer, std::int64_t expert) const;
  /// The `count` experts of a layer that are chosen most often, the most frequent first; of equal
  /// ones the lower number. At most all.
  std::vector<std::int64_t> hottest(std::int64_t layer, std::int64_t count) const;
  /// Share of a layer's pairs of row and chosen expert that those catch.
  double hot_share(std::int64_t layer, std::int64_t count) const;
  /// The same, the mean over the layers.
  double hot_share(std::int64_t count) const;

  bool operator==(const Routing& other) const;

 private:
  struct Tables;
  explicit Routing(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}

  std::shared_ptr<const Tables> tables_;  ///< never changes, so that copies share it
};

/// E (1 - (1 - k/E)^rows): Routing::experts_touched() of a uniform one. 1 without experts.
double experts_touched(std::int64_t num_experts, std::int64_t experts_per_token, double rows);

/// For each weight the chance to be among `chosen` ones that are drawn one after the other without
/// replacement, each by the weights of those left ("successive sampling"). Not an approximation: of
/// clocks that ring after a time exponentially distributed with rate w, the first `chosen` are such
/// a draw, so that
///   P(i) = integral over t of w_i e^(-w_i t) P(at most chosen - 1 of the others have rung by t),
/// whose integrand in log(t) the trapezoidal rule sums to about 1e-12.
std::vector<double> inclusion_chances(const std::vector<double>& weights, std::int64_t chosen);

}  // namespace sluice
