#include "jinja/filters.h"

namespace kvcake::jinja {

Function FindFilter(std::string_view name) {
  for (const Filters* filters : {&TextFilters(), &NumberFilters(), &SequenceFilters()}) {
    const auto found = filters->find(name);
    if (found != filters->end()) return found->second;
  }
  return nullptr;
}

}  // namespace kvcake::jinja
