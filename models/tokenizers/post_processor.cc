#include "models/tokenizers/post_processor.h"

#include <string>

#include "base/error.h"
#include "base/json.h"

namespace sluice::tokenizers {
namespace {

void add_template(const JsonField& field, Template& around) {
  const JsonField single = field.at("single");
  Template ours;
  bool seen_text = false;
  for (std::size_t i = 0; i < single.size(); ++i) {
    const JsonField piece = single.item(i);
    if (const auto sequence = piece.find("Sequence")) {
      if (seen_text || sequence->at("id").text() != "A") {
        throw Error("{}: expected the sequence A once", single.where());
      }
      seen_text = true;
      continue;
    }
    const std::string& name = piece.at("SpecialToken").at("id").text();
    const JsonField ids = field.at("special_tokens").at(name).at("ids");
    for (std::size_t j = 0; j < ids.size(); ++j) {
      (seen_text ? ours.after : ours.before).push_back(ids.item(j).token_id());
    }
  }
  if (!seen_text) throw Error("{}: the sequence A is missing", single.where());
  around.before.insert(around.before.begin(), ours.before.begin(), ours.before.end());
  around.after.insert(around.after.end(), ours.after.begin(), ours.after.end());
}

constexpr int max_nesting = 16;

void add_post_processor(const JsonField& field, int nesting, Template& around) {
  const std::string& type = field.type();
  if (type == "ByteLevel") return;  // only about offsets
  if (type == "TemplateProcessing") {
    add_template(field, around);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    around.before.insert(around.before.begin(), field.at("cls").item(1).token_id());
    around.after.push_back(field.at("sep").item(1).token_id());
  } else if (type == "Sequence") {
    if (nesting == max_nesting)
      throw Error("{}: Sequence nested more than {} deep", field.where(), max_nesting);
    const JsonField items = field.at("processors");
    for (std::size_t i = 0; i < items.size(); ++i)
      add_post_processor(items.item(i), nesting + 1, around);
  } else {
    throw Error(
        "{}: type {} is not supported (BertProcessing, ByteLevel, RobertaProcessing, Sequence, "
        "TemplateProcessing are)",
        field.where(), quote(type));
  }
}

}  // namespace

Template make_template(const JsonField& field) {
  Template around;
  add_post_processor(field, 0, around);
  return around;
}

}  // namespace sluice::tokenizers
