// kvcake serve: an OpenAI-compatible server.
#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <filesystem>

#include "app/chain_link.h"
#include "app/config_file.h"
#include "app/flags.h"
#include "app/http_thread.h"
#include "app/key_flags.h"
#include "app/log_format.h"
#include "base/cpu.h"
#include "base/descriptors.h"
#include "base/host_port.h"
#include "model/model_dir.h"
#include "server/generation_config.h"
#include "server/http_api.h"
#include "server/http_tls.h"
#include "server/service_manager.h"

namespace kvcake {
namespace {

struct ServeFlags {
  RuntimeOptions runtime;
  ChainFlags chain;
  HttpOptions http;
  ApiOptions api;
  KeySources keys;
  size_t tenant_requests_max = 0;
  ChatTemplateOptions chat_template;
  std::string generation_config = "auto";
  std::string certificate_file;
  std::string key_file;
  std::string log_format = "text";
  std::string trace_dir;
  size_t trace_files_max = 1000;
};

// The name of the model's directory, unless others were given.
std::vector<std::string> ModelNames(const ServeFlags& flags) {
  if (!flags.api.requests.model_names.empty()) return flags.api.requests.model_names;
  const auto path = std::filesystem::absolute(flags.runtime.model_dir + "/.").lexically_normal();
  return {path.parent_path().filename().string()};
}

// What is queued for the stores when the server ends gets so long, which, with the default
// --drain-timeout, ends before service managers lose patience.
constexpr Seconds kLastWritesMax{60};

// As many connections as there are descriptors for, besides the model's, the stores' and the
// admins'.
Status FitConnections(HttpOptions* http) {
  const uint64_t reserve = 256 + (http->admin_port ? http->admin_connections_max : 0);
  const uint64_t limit = RaiseDescriptorLimit();
  size_t* const connections_max = &http->connections_max;
  if (limit <= reserve) {
    return Fail(ErrorCode::kResourceExhausted,
                "{} open files are allowed and {} kept for stores: raise the limit (ulimit -n)",
                limit, reserve);
  }
  if (*connections_max > limit - reserve) {
    spdlog::warn("--connections-max {} is {}: {} open files are allowed (ulimit -n)",
                 *connections_max, limit - reserve, limit);
    *connections_max = limit - reserve;
  }
  return {};
}

Status LoadCertificate(ServeFlags* flags) {
  if (flags->certificate_file.empty()) return {};
  ASSIGN_OR_RETURN(flags->http.tls, LoadTls(flags->certificate_file, flags->key_file));
  return {};
}

// `asked`: the path that was asked for, if any.
void SayWhatComputes(Runtime& runtime, NumericPath asked) {
  if (runtime.emulated()) return;
  const NumericPath path = runtime.model().numeric_path();
  spdlog::info("computing on {}, {} threads, numeric path {}", DeviceName(path),
               runtime.threads().size(), NumericPathName(path));
  if (path != NumericPath::kBf16Dot || asked == path) return;
  if (const Status& amx = AskForAmx(); !amx && amx.error().code == ErrorCode::kIo) {
    spdlog::warn("prompts could be computed several times faster: {}", amx.error().message);
  }
}

// As vLLM says it.
void SayRoom(const Engine& engine, int model_len_max) {
  const int64_t tokens = engine.tokens_max();
  const double requests = static_cast<double>(tokens) / model_len_max;
  spdlog::info("KV cache: {} tokens, {:.1f} requests of {} tokens (--max-model-len)", tokens,
               requests, model_len_max);
  if (requests < 1) {
    spdlog::warn("requests of more than {} tokens are refused, as they do not fit into memory",
                 tokens);
  }
}

void FinishWrites(Engine& engine) {
  if (const uint64_t chunks = engine.write_stats().in_flight(); chunks > 0) {
    spdlog::info("{} chunks are still to be kept: for at most {} s", chunks,
                 kLastWritesMax.count());
  }
  engine.FlushStore(Clock::Real().Now() + kLastWritesMax);
}

void SayWhere(const ServeFlags& flags, const HttpServer& server, uint16_t port) {
  const char* const scheme = flags.http.tls ? "https" : "http";
  if (const auto admin_port = server.admin_port()) {
    spdlog::info("for those who run it: {}://{}/metrics", scheme,
                 HostAndPort(flags.http.admin_host, *admin_port));
  }
  spdlog::info("serving {} at {}://{}/v1", flags.api.requests.model_names[0], scheme,
               HostAndPort(flags.http.host, port));
}

// Half of all is a tenant's share where there are several, unless another was given.
JobLimits LimitJobs(const ServeFlags& flags) {
  const size_t jobs_max = flags.runtime.max_sequences + flags.runtime.waiting_max;
  size_t share = flags.tenant_requests_max;
  if (share == 0) share = flags.keys.file.empty() ? jobs_max : (jobs_max + 1) / 2;
  return {.jobs_max = jobs_max, .tenant_jobs_max = share};
}

// What requests get that say nothing, as vLLM has it: "auto" is the model's, "vllm" are OpenAI's.
Result<RequestDefaults> LoadDefaults(const ServeFlags& flags) {
  if (flags.generation_config == "vllm") return RequestDefaults{};
  const bool automatic = flags.generation_config == "auto";
  return LoadRequestDefaults(automatic ? flags.runtime.model_dir : flags.generation_config,
                             /*must_exist=*/!automatic);
}

// Names of parsers, and that there is one for tools where it is needed.
Status CheckParsers(const ApiOptions& api) {
  if (api.requests.auto_tool_choice && api.requests.tool_parser.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                "--enable-auto-tool-choice needs --tool-call-parser, which says how the model "
                "writes calls");
  }
  return {};
}

// A quota for each tenant is of no use where there is none, and an operator's mistake.
Status CheckTenantQuota(const ServeFlags& flags) {
  if (flags.runtime.tenant_store_bytes > 0 && flags.keys.file.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                "--tenant-store-bytes is for each tenant, and there are none: name them in "
                "--api-key-file, or bound all chunks together with --disk-capacity");
  }
  return {};
}

// A body that fits into no room for all would be refused for ever, as if it were worth a retry.
Status CheckBodies(const HttpOptions& http) {
  if (http.body_bytes_max > http.bodies_bytes_max) {
    return Fail(ErrorCode::kInvalidArgument,
                "--body-max of {} bytes is above --bodies-max of {}, which is for all together",
                http.body_bytes_max, http.bodies_bytes_max);
  }
  return {};
}

// All answers to a request wait or run at once: no more can be asked for than may.
void LimitChoices(const JobLimits& jobs, RequestLimits* limits) {
  const auto bound = [limits](size_t most, const char* flag) {
    if (most >= static_cast<size_t>(limits->choices_max)) return;
    limits->choices_max = static_cast<int>(most);
    limits->choices_flag = flag;
  };
  bound(jobs.jobs_max, "--max-num-seqs and --queue-max together");
  bound(jobs.tenant_jobs_max, "--tenant-requests-max");
}

// Fills in what only the loaded model tells.
Status CompleteApiOptions(Runtime& runtime, ServeFlags* flags) {
  const int positions = runtime.model().max_positions();
  if (flags->api.requests.model_len_max > positions) {
    return Fail(ErrorCode::kInvalidArgument,
                "--max-model-len of {} is above the model's context of {} tokens",
                flags->api.requests.model_len_max, positions);
  }
  if (flags->api.requests.model_len_max == 0) flags->api.requests.model_len_max = positions;
  RequestLimits& limits = flags->api.requests.rules.limits;
  limits.ids_max = std::max<size_t>(limits.ids_max, flags->api.requests.model_len_max);
  LimitChoices(LimitJobs(*flags), &limits);
  ASSIGN_OR_RETURN(flags->api.requests.rules.defaults, LoadDefaults(*flags));
  flags->api.requests.model_names = ModelNames(*flags);
  flags->api.json_log = flags->log_format == "json";
  flags->api.version = KVCAKE_VERSION;
  return {};
}

Result<ChatTemplate> LoadChatTemplate(const ServeFlags& flags) {
  Result<ChatTemplate> chat = ChatTemplate::Load(flags.runtime.model_dir, flags.chat_template);
  if (chat) {
    spdlog::info("chat template: {}", chat->Describe());
  } else if (flags.chat_template.file.empty()) {
    spdlog::info("no /v1/chat/completions: {}", chat.error().message);
  }
  return chat;
}

// A manager that does not listen stops nothing.
void WarnUnless(const Status& told) {
  if (!told) spdlog::warn("{}", told.error().message);
}

Status Serve(ServeFlags flags, const CLI::App& command) {
  BeginLog(flags.log_format);
  RETURN_IF_ERROR(CheckParsers(flags.api));
  RETURN_IF_ERROR(CheckTenantQuota(flags));
  RETURN_IF_ERROR(CheckBodies(flags.http));
  RETURN_IF_ERROR(FitConnections(&flags.http));
  RETURN_IF_ERROR(CheckModelDir(flags.runtime.model_dir));
  ASSIGN_OR_RETURN(ApiKeys keys, LoadKeys(flags.keys));
  ServiceManager manager(ServiceManager::FromEnvironment());
  std::unique_ptr<TraceFiles> traces;
  if (!flags.trace_dir.empty()) {
    ASSIGN_OR_RETURN(traces, TraceFiles::Open(flags.trace_dir, flags.trace_files_max));
  }

  RETURN_IF_ERROR(LoadCertificate(&flags));

  boost::asio::io_context context(1);
  HttpServer server(context, flags.http);
  ASSIGN_OR_RETURN(const uint16_t port, server.Listen());  // before the model: a port may be taken
  HttpThread http(context, server,
                  {.json_log = flags.log_format == "json",
                   .cpus = flags.runtime.cpus,
                   .on_signal = [&manager] { WarnUnless(manager.NotifyAtOnce("STOPPING=1")); },
                   .load_keys = [sources = flags.keys] { return LoadKeys(sources); }});
  // Said when signals have their handlers, or wait for them.
  spdlog::info("listening at {} port {}; loading the model", flags.http.host, port);

  Result<ChatTemplate> chat = LoadChatTemplate(flags);
  if (!chat && !flags.chat_template.file.empty()) return tl::unexpected<Error>(chat.error());
  ASSIGN_OR_RETURN(const auto chain, ChainLink::Start(flags.chain, command, &flags.runtime));
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(flags.runtime));
  flags.api.admin_listener = flags.http.admin_port.has_value();
  flags.api.connections = [&server] { return server.Stats(); };
  RETURN_IF_ERROR(CompleteApiOptions(*runtime, &flags));
  if (chain) flags.api.chain = [&chain = *chain] { return chain.Stats(); };
  EngineLoop loop(runtime->engine(), runtime->restorer(), LimitJobs(flags));
  HttpApi api(context, *runtime, loop, std::move(chat), std::move(keys), traces.get(), flags.api);
  if (chain) RETURN_IF_ERROR(chain->Lead(*runtime, loop));
  http.Open(api, loop);
  WarnUnless(
      manager.Notify(fmt::format("READY=1\nSTATUS=serving {}", flags.api.requests.model_names[0])));
  ServiceManager watchdog(ServiceManager::FromEnvironment());  // ends before what it watches
  watchdog.Watch([&api] { return api.Ailment().empty(); });
  SayWhatComputes(*runtime, flags.runtime.path);
  SayRoom(runtime->engine(), flags.api.requests.model_len_max);
  SayWhere(flags, server, port);
  loop.Run();
  if (chain) chain->End();
  FinishWrites(runtime->engine());
  http.Join();
  return {};
}

void AddHttpFlags(CLI::App& app, HttpOptions* http) {
  app.add_option("--host", http->host, "address to listen at; 0.0.0.0 or :: for all")
      ->capture_default_str();
  app.add_option("--port", http->port, "0: one that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  CLI::Option* admin_port =
      app.add_option("--admin-port", http->admin_port,
                     "listen there, too, for those who run the server: /ready, /metrics and /cache "
                     "are there then and nowhere else, /health and /version there as well; 0: one "
                     "that is free")
          ->check(CLI::Range(0, 65535));
  app.add_option("--admin-host", http->admin_host, "address of --admin-port")
      ->capture_default_str()
      ->needs(admin_port);
  app.add_option("--connections-max", http->connections_max,
                 "for another one the one is closed that has had no request for the longest time; "
                 "if all have one it is refused (503)")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-connections-per-client", http->connections_per_client_max,
                 "as --connections-max, of one address, of IPv6 one /64 network")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--admin-connections-max", http->admin_connections_max, "those of --admin-port")
      ->check(CLI::Range(1, 1 << 10))
      ->capture_default_str();
  app.add_option("--body-max", http->body_bytes_max, "largest body of a request")
      ->transform(SizeValue())
      ->default_str("16MiB");
  app.add_option("--bodies-max", http->bodies_bytes_max,
                 "of all requests' bodies that have come and are not parsed yet")
      ->transform(SizeValue())
      ->default_str("256MiB");
  AddSeconds(app, "--idle-timeout", &http->idle_timeout,
             "for the next request, and for a client to take what is sent");
  AddSeconds(app, "--header-timeout", &http->header_timeout, "for a request's header");
  AddSeconds(app, "--body-timeout", &http->body_timeout, "for a request's body");
  app.add_option_function<double>(
         "--shutdown-delay", [http](double s) { http->shutdown_delay = Seconds(s); },
         "when told to stop (SIGTERM), go on taking requests for so long, no longer /ready: what "
         "sends them takes notice")
      ->transform(DurationValue())
      ->check(CLI::Range(0.0, 1e6))
      ->default_str("0s");
  AddSeconds(app, "--drain-timeout", &http->drain_timeout,
             "for what runs when the server is told to stop (SIGTERM)");
}

// A flag that may be repeated, each time with a list ("a,b" or ["a", "b"]), instead of the default.
// `check` says what is wrong with an element.
void AddList(CLI::App& app, const std::string& name, std::vector<std::string>* list,
             std::string (*check)(const std::string&), const char* help) {
  app.add_option_function<std::vector<std::string>>(
         name,
         [=](const std::vector<std::string>& given) {
           list->clear();
           for (const std::string& text : given) {
             for (std::string& element : SplitList(text)) {
               const std::string wrong = check(element);
               if (!wrong.empty()) {
                 throw CLI::ValidationError(name.substr(0, name.find(',')), wrong);
               }
               list->push_back(std::move(element));
             }
           }
         },
         help)
      ->allow_extra_args(false);
}

void AddTlsFlags(CLI::App& app, ServeFlags* flags) {
  auto* certificate = app.add_option(
      "--ssl-certfile", flags->certificate_file,
      "speak TLS (1.2 or 1.3), with this PEM file's certificates, the server's first");
  auto* key = app.add_option("--ssl-keyfile", flags->key_file,
                             "a PEM file with the private key of --ssl-certfile");
  certificate->needs(key);
  key->needs(certificate);
}

void AddBrowserFlags(CLI::App& app, HttpOptions* http, bool* any_content_type) {
  AddList(app, "--allowed-hosts", &http->allowed_hosts, CheckAllowedHost,
          "names that clients may ask for in Host, besides localhost, loopback addresses and "
          "--host; *: any (default: those alone where --host is a loopback address, else any)");
  AddList(app, "--allowed-origins,--allowed-origin", &http->allowed_origins, CheckAllowedOrigin,
          "pages whose scripts browsers let use the server; *: all; \"\": none (default: loopback, "
          "those that this machine serves)");
  app.add_flag("--any-content-type", *any_content_type,
               "take bodies that do not say that they are application/json: any page's script can "
               "have a browser send them");
}

void AddApiFlags(CLI::App& app, ServeFlags* flags) {
  app.add_option(
      "--emulate", flags->runtime.emulate,
      "wait as long as a machine and a model would compute that are not here, e.g. "
      "bench/profiles/a100-llama-7b.json, instead of computing: answers mean nothing; of "
      "--model only the tokenizer, config and chat template are used then");
  app.add_option("--served-model-name", flags->api.requests.model_names,
                 "what clients call the model; several are names of the same (default: the name of "
                 "its directory)")
      ->check(CLI::Validator(
          [](std::string& name) {
            return name.empty() ? std::string("a model's name is not empty") : std::string();
          },
          "NAME"));
  app.add_option("--max-model-len", flags->api.requests.model_len_max,
                 "most tokens of prompt and answer together (default: the model's context)")
      ->check(CLI::Range(2, 1 << 30));
  AddKeyFlags(app, &flags->keys);
  AddChatTemplateFlags(app, &flags->chat_template);
  app.add_option("--generation-config", flags->generation_config,
                 "where sampling defaults come from: auto: generation_config.json of the model; "
                 "vllm: none but OpenAI's; or a directory with such a file")
      ->capture_default_str();
  app.add_flag("--enable-auto-tool-choice", flags->api.requests.auto_tool_choice,
               "take requests with tools; answers are searched for calls by --tool-call-parser");
  app.add_option("--tool-call-parser", flags->api.requests.tool_parser,
                 "how the model writes calls of tools")
      ->check(CLI::IsMember({"hermes", "llama3_json", "mistral"}));
  app.add_option("--reasoning-parser", flags->api.reasoning_parser,
                 "how the model writes its thoughts, which become reasoning and reasoning_content")
      ->check(CLI::IsMember({"deepseek_r1", "qwen3"}));
  app.add_option("--choices-max", flags->api.requests.rules.limits.choices_max,
                 "most answers to one request: its prompts times n")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  AddSeconds(app, "--request-timeout", &flags->api.request_timeout, "for an answer");
  AddSeconds(app, "--health-timeout", &flags->api.health_timeout,
             "for the engine thread to come around; after that /health and /ready answer 503");
  app.add_option(
         "--tokenizer-threads", flags->api.prepare.threads,
         "parse and tokenize requests of any size, beside one that takes bodies of less than "
         "64 KiB only")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--tokenizer-queue-max", flags->api.prepare.queue_max,
                 "requests that may wait to be tokenized, and as many with bodies of less than 64 "
                 "KiB; more are refused (429)")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  CLI::Option* trace_dir =
      app.add_option("--trace-dir", flags->trace_dir,
                     "write the timeline of each answer's restoration there, as kvcake run --trace "
                     "does; the file is named after the answer's id");
  app.add_option("--trace-files-max", flags->trace_files_max,
                 "most traces in --trace-dir; the oldest are removed")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->needs(trace_dir);
  AddLogFormatFlag(app, &flags->log_format);
  AddLogLevelFlag(app);
}

void AddTenantFlags(CLI::App& app, ServeFlags* flags) {
  app.add_option("--tenant-running-max", flags->runtime.tenant_running_max,
                 "most requests of one tenant that are answered at once (default: "
                 "--max-num-seqs); tenants take turns in any case")
      ->check(CLI::Range(1, 4096));
  app.add_option("--tenant-requests-max", flags->tenant_requests_max,
                 "most requests of one tenant that are answered or wait; more are refused (429) "
                 "(default: with --api-key-file half of --max-num-seqs and --queue-max together)")
      ->check(CLI::Range(1, 1 << 21));
  app.add_option("--tenant-store-bytes", flags->runtime.tenant_store_bytes,
                 "most bytes that the chunks of one tenant of --api-key-file take in each --store; "
                 "beyond it the tenant's own that were used longest ago go (default: no quota)")
      ->transform(SizeValue());
}

}  // namespace

void AddServeCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* serve = app.add_subcommand("serve", "answer requests as OpenAI's API does, over HTTP");
  AddConfigFlag(*serve);
  AddRuntimeFlags(*serve, &flags->runtime, "--slice-tokens,--max-num-batched-tokens");
  AddChainFlags(*serve, &flags->chain);
  AddHttpFlags(*serve, &flags->http);
  AddBrowserFlags(*serve, &flags->http, &flags->api.any_content_type);
  AddTlsFlags(*serve, flags.get());
  AddApiFlags(*serve, flags.get());
  serve->add_option("--max-num-seqs", flags->runtime.max_sequences, "requests answered at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  serve
      ->add_option(
          "--queue-max", flags->runtime.waiting_max,
          "requests beyond --max-num-seqs that may wait for their turn; more are refused (429)")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  AddTenantFlags(*serve, flags.get());
  flags->runtime.step_max = Seconds(0.1);
  serve
      ->add_option_function<double>(
          "--step-ms-max", [flags](double ms) { flags->runtime.step_max = Seconds(ms / 1e3); },
          "how long a step may be expected to take while answers are being written: prompts are "
          "computed in smaller slices, of a chunk at least; 0: no limit")
      ->check(Between(0.0, 1e6))
      ->default_str("100");
  AddScheduleFlags(*serve, &flags->runtime);
  serve->callback([flags, serve, exit_code] {
    if (const Status status = Serve(*flags, *serve); !status) *exit_code = Fatal(status.error());
  });
}

}  // namespace kvcake
