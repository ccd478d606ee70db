// kvcake chat: talk to a model in the terminal.
#include <fmt/core.h>
#include <unistd.h>

#include <csignal>
#include <iostream>

#include "app/config_file.h"
#include "app/flags.h"
#include "model/model_dir.h"
#include "server/chat_template.h"

namespace kvcake {
namespace {

struct ChatFlags {
  RuntimeOptions runtime;
  std::string system;
  ChatTemplateOptions chat_template;
  std::string policy = "cake";
  int max_tokens = 1024;
  SamplingParams sampling = {.temperature = 0.7, .top_p = 0.95};
};

volatile std::sig_atomic_t interrupted = 0;

// From now on Ctrl-C ends an answer, not the program. At the prompt the terminal drops the line.
void CatchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

class Chat {
 public:
  Chat(const ChatFlags& flags, Runtime& runtime, ChatTemplate style)
      : flags_(flags), runtime_(runtime), style_(std::move(style)) {
    if (!flags.system.empty()) Add("system", flags.system);
  }

  // Answers one message, printing as it goes, until it is interrupted. A message that cannot be
  // answered, as in a conversation that outgrows the context, is an error, and is no part of it.
  Status Say(const std::string& message) {
    Add("user", message);
    Status answered = Answer();
    if (!answered) DropLast();
    return answered;
  }

 private:
  Status Answer() {
    ASSIGN_OR_RETURN(const std::string text, style_.Render(prompt_));
    Request request;
    ASSIGN_OR_RETURN(request.prompt, runtime_.tokenizer().Encode(text, /*add_special=*/false));
    request.max_tokens = flags_.max_tokens;
    request.policy = *PolicyFromName(flags_.policy);
    request.sampling = flags_.sampling;
    request.end_tokens = runtime_.config().eos_tokens;
    Detokenizer detokenizer(runtime_.tokenizer(), /*skip_special=*/true, request.prompt);
    std::string answer;
    const auto emit = [&](const std::string& piece) {
      answer += piece;
      fmt::print("{}", piece);
      std::fflush(stdout);
    };
    request.on_token = [&](const TokenEvent& event) {
      emit(detokenizer.Append(event.token));
      return true;
    };
    interrupted = 0;
    Engine& engine = runtime_.engine();
    ASSIGN_OR_RETURN(const Completion completion,
                     engine.Answer(std::move(request), [&](SequenceId id) {
                       if (interrupted != 0) engine.Cancel(id);
                     }));
    emit(detokenizer.Finish());
    fmt::print("\n");
    if (isatty(STDERR_FILENO) != 0) {
      fmt::print(stderr, "[{} prompt tokens, {} computed; first token after {:.2f} s]\n",
                 completion.report.prompt_tokens, completion.report.tokens_computed,
                 completion.ttft_s);
    }
    if (completion.tokens.empty()) {  // interrupted: as if nothing had been asked
      DropLast();
    } else {
      Add("assistant", answer);
    }
    return {};
  }

  void DropLast() { prompt_.messages.erase(prompt_.messages.size() - 1); }
  void Add(const char* role, const std::string& text) {
    prompt_.messages.push_back({{"role", role}, {"content", text}});
  }

  const ChatFlags& flags_;
  Runtime& runtime_;
  const ChatTemplate style_;
  ChatPrompt prompt_;
};

Status Talk(const ChatFlags& flags) {
  RETURN_IF_ERROR(CheckModelDir(flags.runtime.model_dir));
  ASSIGN_OR_RETURN(ChatTemplate style,
                   ChatTemplate::Load(flags.runtime.model_dir, flags.chat_template));
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(flags.runtime));
  Chat chat(flags, *runtime, std::move(style));
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) {
    CatchInterrupts();
    fmt::print(stderr,
               "an empty line or Ctrl-D ends the conversation, Ctrl-C the answer being written\n");
  }
  std::string line;
  for (;;) {
    if (terminal) fmt::print(stderr, "> ");
    if (!std::getline(std::cin, line) || line.empty()) break;
    const Status said = chat.Say(line);
    if (said) continue;
    if (!terminal) return said;
    fmt::print(stderr, "kvcake: {}\n[the message is dropped{}]\n", said.error().message,
               said.error().code == ErrorCode::kInvalidArgument ? ": a shorter one may fit" : "");
  }
  runtime->engine().FlushStore();
  return {};
}

}  // namespace

void AddChatCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* chat = app.add_subcommand(
      "chat", "talk to a model; a line of stdin is a message, an empty one the end");
  AddConfigFlag(*chat);
  AddRuntimeFlags(*chat, &flags->runtime);
  chat->add_option("--system", flags->system, "a system message to begin with");
  AddChatTemplateFlags(*chat, &flags->chat_template);
  chat->add_option("--max-tokens", flags->max_tokens, "most tokens of an answer")
      ->check(Positive())
      ->capture_default_str();
  AddPolicyFlag(*chat, &flags->policy);
  AddSamplingFlags(*chat, &flags->sampling);
  RunWhenChosen(chat, Talk, flags, exit_code);
}

}  // namespace kvcake
