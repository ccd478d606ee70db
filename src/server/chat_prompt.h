// What a chat's prompt is made of, and its fields in a request: messages, tools, documents, and
// what else the model's template is told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/request_fields.h"

namespace kvcake {

// Objects keep the order in which the client wrote their members: templates print them.
struct ChatPrompt {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools = nullptr;                            // an array; null: none
  nlohmann::ordered_json documents = nullptr;                        // likewise
  nlohmann::ordered_json kwargs = nlohmann::ordered_json::object();  // other variables
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the answer goes on with the last message
};

struct ChatLimits {
  size_t messages_max = 4096;
  size_t tools_max = 1024;
  size_t tool_calls_max = 1024;      // of one message
  size_t object_members_max = 1024;  // to look one up takes as many steps
  uint64_t look_ups_max = 64 << 20;  // such steps in all, each member of each object looked up once
};

// Reads the fields of a chat that become its prompt. `text` is the request's, which has `fields`
// in it. What an assistant called is checked and has its arguments as objects, empty ones where it
// has written none; "developer" is a system message; other members of messages and tools are left
// as they are.
ChatPrompt ReadChatPrompt(std::string_view text, const ChatLimits& limits, RequestFields* fields);

// What the answer goes on with: the text of the last message, all parts in one. Empty unless it is
// to be continued.
std::string ContinuedText(const ChatPrompt& prompt);

}  // namespace kvcake
