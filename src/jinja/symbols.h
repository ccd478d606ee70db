// Which names a template sets before it reads them.
#pragma once

#include "jinja/ast.h"

namespace kvcake::jinja {

// Notes in each node with a scope of its own which names jinja2 takes to be undefined when the
// scope is entered, though the context may have them: those that the scope sets before it reads
// them itself. A loop, a macro or a block inside it that runs before the set sees nothing then.
void FindUndefined(Node* root);

}  // namespace kvcake::jinja
