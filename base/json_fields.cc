#include "base/json_fields.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace sluice {

using Json = nlohmann::json;

const Json& JsonFields::at(const Json& object, const char* key) const {
  if (!object.is_object()) throw Error("{}: {}, expected an object", where_, describe(object));
  const auto found = object.find(key);
  if (found == object.end()) throw Error("{}: \"{}\" is missing", where_, key);
  return *found;
}

const Json& JsonFields::list(const Json& object, const char* key) const {
  const Json& value = at(object, key);
  if (!value.is_array())
    throw Error("{}: \"{}\" is {}, expected a list", where_, key, describe(value));
  return value;
}

std::int64_t JsonFields::number(const Json& object, const char* key, std::int64_t least,
                                std::int64_t most) const {
  return number_of(at(object, key), key, least, most);
}

std::int64_t JsonFields::number_of(const Json& value, const char* key, std::int64_t least,
                                   std::int64_t most) const {
  const auto found = whole_number(value, least, most);
  if (!found)
    throw Error("{}: \"{}\" is {}, expected a number from {} to {}", where_, key, describe(value),
                least, most);
  return *found;
}

bool JsonFields::truth(const Json& object, const char* key) const {
  const Json& value = at(object, key);
  if (!value.is_boolean())
    throw Error("{}: \"{}\" is {}, expected true or false", where_, key, describe(value));
  return value.get<bool>();
}

std::string JsonFields::text(const Json& object, const char* key) const {
  const Json& value = at(object, key);
  if (!value.is_string())
    throw Error("{}: \"{}\" is {}, expected a name", where_, key, describe(value));
  return value.get<std::string>();
}

double JsonFields::seconds(const Json& object, const char* key) const {
  const Json& value = at(object, key);
  if (!value.is_number() || !(value.get<double>() > 0))
    throw Error("{}: \"{}\" is {}, expected seconds", where_, key, describe(value));
  return value.get<double>();
}

}  // namespace sluice
