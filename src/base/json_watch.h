// What goes through a JSON text without keeping it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvcake {

// Takes all that the parser takes, and ends where that ends; for json::sax_parse. Watchers override
// what they look at.
class JsonWatch : public nlohmann::json::json_sax_t {
 public:
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }
};

}  // namespace kvcake
