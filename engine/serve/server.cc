#include "engine/serve/server.h"

#include <sys/resource.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>

#include "base/json.h"
#include "base/log.h"
#include "engine/serve/api_keys.h"
#include "engine/serve/connection.h"
#include "engine/serve/exchange.h"
#include "engine/serve/http.h"
#include "engine/serve/live.h"
#include "engine/serve/metrics.h"
#include "engine/serve/openai_request.h"
#include "engine/serve/openai_response.h"

namespace sluice {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds poll_time{50};      // of the stop flag
constexpr std::chrono::milliseconds last_writes{2000};  // for errors to reach their clients
constexpr std::chrono::milliseconds accept_pause{100};

/// The socket that listens. Throws Error.
tcp::acceptor listen(asio::io_context& io, const ServeSettings& settings) {
  boost::system::error_code error;
  tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(settings.host, std::to_string(settings.port), tcp::resolver::passive, error);
  if (error || found.empty())
    throw Error("--host {}: no such address here: {}", quote(settings.host), error.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error == asio::error::address_in_use)
    throw Error("port {} of {} is in use; choose another one with --port", settings.port,
                settings.host);
  if (error)
    throw Error("cannot listen on port {} of {}: {}", settings.port, quote(settings.host),
                error.message());
  return acceptor;
}

/// Bytes of bodies that may be in memory at once.
class BodyBudget {
 public:
  explicit BodyBudget(std::int64_t bytes) : free_(bytes) {}

  std::shared_ptr<void> take(std::int64_t bytes) {
    if (free_.fetch_sub(bytes) < bytes) {
      free_.fetch_add(bytes);
      return nullptr;
    }
    return {this, [bytes](BodyBudget* budget) { budget->free_.fetch_add(bytes); }};
  }

 private:
  std::atomic<std::int64_t> free_;
};

/// A path, or the beginning of one where the pattern ends with *.
bool matches(const std::string& pattern, std::string_view path) {
  if (!pattern.ends_with('*')) return path == pattern;
  const std::string_view beginning = std::string_view(pattern).substr(0, pattern.size() - 1);
  return path.size() > beginning.size() && path.starts_with(beginning);
}

}  // namespace

class Server::Impl final : public ConnectionOwner {
 public:
  Impl(const ServeSettings& settings, Backend& backend)
      : settings_(settings),
        backend_(backend),
        keys_(settings.api_key_file.empty() ? ApiKeys() : ApiKeys::read(settings.api_key_file)),
        bodies_(settings.limits.all_bodies_bytes),
        io_(std::make_shared<asio::io_context>()),
        acceptor_(listen(*io_, settings)),
        poll_timer_(*io_),
        accept_timer_(*io_),
        context_{.io = io_, .backend = backend, .metrics = metrics_},
        random_(std::random_device()()),
        created_(std::time(nullptr)),
        id_prefix_(fmt::format("{:08x}", std::random_device()())) {}

  ~Impl() override { stop_preparing(); }

  std::uint16_t port() const { return port_; }
  std::string url() const {
    const bool is_v6 = address_.is_v6();
    return fmt::format("http://{}{}{}:{}", is_v6 ? "[" : "", address_.to_string(), is_v6 ? "]" : "",
                       port_);
  }

  int run(const std::atomic<bool>& stop) {
    if (!address_.is_loopback() && settings_.api_key_file.empty())
      logger().warn(
          "whoever reaches {} may use this server; --api-key-file lets in those with a key", url());
    accept();
    poll(stop);
    io_->run();
    stop_preparing();
    return failure_.empty() ? 0 : 1;
  }

  void fail(const std::string& message) {
    asio::post(*io_, [this, message] { on_failure(message); });
  }

  // --- ConnectionOwner ---

  std::optional<HttpReply> refuse(const HttpHead& head) override;
  std::shared_ptr<void> reserve(std::int64_t body_bytes) override {
    return bodies_.take(body_bytes);
  }
  void handle(std::shared_ptr<Connection> connection, HttpRequest request) override;
  bool keeps_connections() const override { return !drains_; }
  void on_answer(const HttpHead& head, int status) override {
    metrics_.count_answer(status);
    logger().info("{} {}: {}", quote(head.method), quote(head.path), status);
  }
  void on_closed(Connection& connection) override {
    // Not at once: the caller may be the last who holds it.
    asio::post(*io_,
               [this, closed = connection.shared_from_this()] { connections_.erase(closed); });
  }

 private:
  using Answer = std::function<void(const std::shared_ptr<Connection>&, HttpRequest)>;
  using Reply = HttpReply (Impl::*)(const HttpRequest&) const;
  struct Route {
    std::string method;
    std::string path;
    bool needs_key = true;
    Answer answer;
  };

  // accepting
  void accept();
  void on_accepted(tcp::socket socket);

  // routes
  std::vector<Route> make_routes();
  const Route* find_route(const HttpHead& head) const;
  std::string methods_of(const std::string& path) const;
  Answer generate(Endpoint endpoint);
  HttpReply detokenize(const HttpRequest& request) const;
  HttpReply health(const HttpRequest& request) const;
  HttpReply live(const HttpRequest& request) const;
  HttpReply metrics(const HttpRequest& request) const;
  HttpReply model(const HttpRequest& request) const;
  HttpReply models(const HttpRequest& request) const;
  HttpReply page(const HttpRequest& request) const;
  HttpReply tokenize(const HttpRequest& request) const;
  HttpReply version(const HttpRequest& request) const;
  ordered_json model_entry() const;

  /// Runs `work` on the thread for what takes time, then `then` with its result, or answers with
  /// the ApiError that it threw. Neither may hold the connection, which must not end on that
  /// thread.
  template <typename Work, typename Then>
  void prepare(std::shared_ptr<Connection> connection, Work work, Then then);
  void start_exchange(const std::shared_ptr<Connection>& connection, OpenAiRequest request,
                      Clock::time_point arrival);

  // ends
  void poll(const std::atomic<bool>& stop);
  void begin_drain();
  void fail_exchanges(const ApiError& error);
  void on_failure(const std::string& message);
  void close_idle_connections();
  bool is_quiet() const;
  void stop_preparing() {
    preparer_.stop();
    preparer_.join();
  }

  const ServeSettings settings_;
  Backend& backend_;
  ApiKeys keys_;
  ServeMetrics metrics_;
  BodyBudget bodies_;
  std::shared_ptr<asio::io_context> io_;
  tcp::acceptor acceptor_;
  std::uint16_t port_ = acceptor_.local_endpoint().port();
  asio::ip::address address_ = acceptor_.local_endpoint().address();
  asio::steady_timer poll_timer_;
  asio::steady_timer accept_timer_;
  /// Reads bodies, renders templates and tokenises, so that a long prompt holds up no stream.
  asio::thread_pool preparer_{1};
  ExchangeContext context_;
  std::mt19937_64 random_;
  std::int64_t created_;
  std::string id_prefix_;
  std::int64_t next_id_ = 0;
  std::vector<Route> routes_ = make_routes();
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::unordered_map<Exchange*, std::shared_ptr<Exchange>> exchanges_;
  bool drains_ = false;
  Clock::time_point drain_end_;  ///< where it drains
  bool gives_up_ = false;        ///< the last errors are being written
  std::string failure_;
};

// --- accepting ---

void Server::Impl::accept() {
  acceptor_.async_accept([this](const boost::system::error_code& error, tcp::socket socket) {
    if (drains_ || error == asio::error::operation_aborted) return;
    if (!error) {
      on_accepted(std::move(socket));
      return accept();
    }
    logger().warn("cannot accept a connection: {}", error.message());
    accept_timer_.expires_after(accept_pause);
    accept_timer_.async_wait([this](const boost::system::error_code& cancelled) {
      if (!cancelled && !drains_) accept();
    });
  });
}

void Server::Impl::on_accepted(tcp::socket socket) {
  if (std::ssize(connections_) >= settings_.limits.connections) {
    const ApiError full(
        {.status = 503, .param = {}, .code = "too_many_connections", .retry_after_s = 1},
        "too many connections; try again");
    metrics_.count_answer(full.details().status);
    boost::system::error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(http_bytes(reply_with(full), KeepAlive::no, true)), ignored);
    return;
  }
  const auto connection = std::make_shared<Connection>(std::move(socket), settings_.limits, *this);
  connections_.insert(connection);
  connection->start();
}

// --- routes ---

std::vector<Server::Impl::Route> Server::Impl::make_routes() {
  const auto at_once = [this](Reply reply) -> Answer {
    return
        [this, reply](const std::shared_ptr<Connection>& connection, const HttpRequest& request) {
          connection->reply(std::invoke(reply, this, request));
        };
  };
  const auto prepared = [this](Reply reply) -> Answer {
    return [this, reply](const std::shared_ptr<Connection>& connection, HttpRequest request) {
      prepare(
          connection,
          [this, reply, request = std::move(request)] { return std::invoke(reply, this, request); },
          [](const std::shared_ptr<Connection>& asker, const HttpReply& made) {
            asker->reply(made);
          });
    };
  };
  return {{"GET", "/", false, at_once(&Impl::page)},
          {"POST", "/detokenize", true, prepared(&Impl::detokenize)},
          {"GET", "/health", false, at_once(&Impl::health)},
          {"GET", "/live", true, at_once(&Impl::live)},
          {"GET", "/metrics", true, at_once(&Impl::metrics)},
          {"POST", "/tokenize", true, prepared(&Impl::tokenize)},
          {"POST", "/v1/chat/completions", true, generate(Endpoint::chat)},
          {"POST", "/v1/completions", true, generate(Endpoint::completions)},
          {"GET", "/v1/models", true, at_once(&Impl::models)},
          {"GET", "/v1/models/*", true, at_once(&Impl::model)},
          {"GET", "/version", false, at_once(&Impl::version)}};
}

const Server::Impl::Route* Server::Impl::find_route(const HttpHead& head) const {
  const std::string method = head.method == "HEAD" ? "GET" : head.method;
  for (const Route& route : routes_) {
    if (matches(route.path, head.path) && route.method == method) return &route;
  }
  return nullptr;
}

std::string Server::Impl::methods_of(const std::string& path) const {
  for (const Route& route : routes_) {
    if (matches(route.path, path)) return route.method == "GET" ? "GET, HEAD" : route.method;
  }
  return {};
}

std::optional<HttpReply> Server::Impl::refuse(const HttpHead& head) {
  const Route* route = find_route(head);
  if (route == nullptr) {
    const std::string allowed = methods_of(head.path);
    if (allowed.empty())
      return reply_with({{.status = 404, .param = {}, .code = {}},
                         fmt::format("there is no {} here", quote(head.path))});
    return reply_with(
        {{.status = 405, .param = {}, .code = {}, .allowed = allowed},
         fmt::format("{} takes {}, not {}", quote(head.path), allowed, quote(head.method))});
  }
  if (route->needs_key && !keys_.lets_in(head.authorization))
    return reply_with({{.status = 401, .param = {}, .code = "invalid_api_key"},
                       "expected a known API key as \"Authorization: Bearer KEY\""});
  if (drains_ && route->method == "POST") return reply_with(refusal_error(Refusal::draining));
  return std::nullopt;
}

void Server::Impl::handle(std::shared_ptr<Connection> connection, HttpRequest request) {
  const Route* route = find_route(request.head);
  if (route == nullptr) return;  // refuse() found one
  try {
    route->answer(connection, std::move(request));
  } catch (const std::exception& error) {
    logger().error("{}", error.what());
    connection->reply(reply_with({{.status = 500, .param = {}, .code = {}}, error.what()}));
  }
}

template <typename Work, typename Then>
void Server::Impl::prepare(std::shared_ptr<Connection> connection, Work work, Then then) {
  using Result = std::invoke_result_t<Work>;
  asio::post(preparer_, [io = io_, connection = std::move(connection), work = std::move(work),
                         then = std::move(then)]() mutable {
    std::variant<Result, ApiError> result = ApiError({.status = 500, .param = {}, .code = {}}, "");
    try {
      result = work();
    } catch (const ApiError& error) {
      result = error;
    } catch (const std::exception& error) {
      result = ApiError({.status = 500, .param = {}, .code = {}}, error.what());
    }
    asio::post(*io, [connection = std::move(connection), result = std::move(result),
                     then = std::move(then)]() mutable {
      if (const auto* error = std::get_if<ApiError>(&result))
        return connection->reply(reply_with(*error));
      then(connection, std::move(std::get<Result>(result)));
    });
  });
}

Server::Impl::Answer Server::Impl::generate(Endpoint endpoint) {
  return [this, endpoint](const std::shared_ptr<Connection>& connection, HttpRequest request) {
    const Clock::time_point arrival = Clock::now();
    prepare(
        connection,
        [this, endpoint, seed = random_(), request = std::move(request)] {
          return parse_openai_request(request.body, endpoint, settings_.model, settings_.limits,
                                      seed);
        },
        [this, arrival](const std::shared_ptr<Connection>& asker, OpenAiRequest parsed) {
          start_exchange(asker, std::move(parsed), arrival);
        });
  };
}

void Server::Impl::start_exchange(const std::shared_ptr<Connection>& connection,
                                  OpenAiRequest request, Clock::time_point arrival) {
  if (!connection->is_open()) return;  // the client left while its request was read
  if (drains_) return connection->reply(reply_with(refusal_error(Refusal::draining)));
  const std::string id =
      fmt::format("{}-{}{:08x}", request.endpoint == Endpoint::chat ? "chatcmpl" : "cmpl",
                  id_prefix_, next_id_++);
  OpenAiAnswer answer(std::move(request), id, std::time(nullptr), settings_.model.tokenizer);
  const auto key = std::make_shared<Exchange*>(nullptr);
  const auto exchange = std::make_shared<Exchange>(connection, std::move(answer), context_,
                                                   [this, key] { exchanges_.erase(*key); });
  *key = exchange.get();
  exchanges_.emplace(*key, exchange);
  exchange->start(arrival);
}

HttpReply Server::Impl::health(const HttpRequest& /*request*/) const {
  constexpr int unavailable = 503;
  const EngineSnapshot::State state =
      drains_ ? EngineSnapshot::State::draining : backend_.snapshot().state;
  HttpReply reply{.body = json_text(ordered_json{{"status", to_string(state)}}), .headers = {}};
  if (state != EngineSnapshot::State::ready) reply.status = unavailable;
  return reply;
}

ordered_json Server::Impl::model_entry() const {
  return {{"id", settings_.model.name},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "sluice"},
          {"max_model_len", settings_.model.max_model_len}};
}

HttpReply Server::Impl::models(const HttpRequest& /*request*/) const {
  return {.body = json_text(
              ordered_json{{"object", "list"}, {"data", ordered_json::array({model_entry()})}}),
          .headers = {}};
}

HttpReply Server::Impl::model(const HttpRequest& request) const {
  constexpr std::string_view beginning = "/v1/models/";
  const std::string_view asked = std::string_view(request.head.path).substr(beginning.size());
  if (asked == settings_.model.name) return {.body = json_text(model_entry()), .headers = {}};
  return reply_with({{.status = 404, .param = "model", .code = "model_not_found"},
                     fmt::format("The model {} does not exist", quote(asked))});
}

HttpReply Server::Impl::tokenize(const HttpRequest& request) const {
  const TokenizeRequest parsed = parse_tokenize_request(request.body, settings_.model);
  ordered_json object = {{"count", parsed.tokens.size()},
                         {"max_model_len", settings_.model.max_model_len},
                         {"tokens", parsed.tokens},
                         {"token_strs", nullptr}};
  if (parsed.return_token_strs) {
    object["token_strs"] = ordered_json::array();
    for (const std::int32_t token : parsed.tokens)
      object["token_strs"].push_back(settings_.model.tokenizer->piece(token));
  }
  return {.body = json_text(object), .headers = {}};
}

HttpReply Server::Impl::detokenize(const HttpRequest& request) const {
  const std::vector<std::int32_t> tokens = parse_detokenize_request(request.body, settings_.model);
  return {.body = json_text(ordered_json{{"prompt", settings_.model.tokenizer->decode(tokens)}}),
          .headers = {}};
}

HttpReply Server::Impl::live(const HttpRequest& /*request*/) const {
  return {.body = live_json(backend_.snapshot(), settings_.model.name), .headers = {}};
}

HttpReply Server::Impl::metrics(const HttpRequest& /*request*/) const {
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = metrics_.text(backend_.snapshot(), std::ssize(connections_)),
          .headers = {}};
}

HttpReply Server::Impl::page(const HttpRequest& /*request*/) const {
  return {
      .content_type = "text/html; charset=utf-8",
      .body = std::string(chat_page()),
      .headers = {{"Content-Security-Policy",
                   "default-src 'self' 'unsafe-inline'; img-src data:; frame-ancestors 'none'"}}};
}

HttpReply Server::Impl::version(const HttpRequest& /*request*/) const {
  return {.body = json_text(ordered_json{{"version", SLUICE_VERSION}}), .headers = {}};
}

// --- ends ---

void Server::Impl::poll(const std::atomic<bool>& stop) {
  if (stop && !drains_) begin_drain();
  const bool is_late = drains_ && Clock::now() >= drain_end_;
  if (is_late && !gives_up_) {
    gives_up_ = true;
    drain_end_ = Clock::now() + last_writes;
    fail_exchanges({{.status = 503, .param = {}, .code = "shutting_down"},
                    "the server is shutting down and cannot wait for this output"});
  } else if (is_late || (drains_ && is_quiet())) {
    return io_->stop();
  }
  poll_timer_.expires_after(poll_time);
  poll_timer_.async_wait([this, &stop](const boost::system::error_code& error) {
    if (!error) poll(stop);
  });
}

void Server::Impl::begin_drain() {
  logger().info("draining: no new requests");
  drains_ = true;
  drain_end_ = Clock::now() + settings_.drain;
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  backend_.drain();
  close_idle_connections();
}

void Server::Impl::on_failure(const std::string& message) {
  if (!failure_.empty()) return;
  failure_ = message.empty() ? "the engine failed" : message;
  logger().error("{}", failure_);
  if (!drains_) begin_drain();
  gives_up_ = true;
  drain_end_ = Clock::now() + last_writes;
  fail_exchanges({{.status = 500, .param = {}, .code = {}}, failure_});
}

void Server::Impl::fail_exchanges(const ApiError& error) {
  const auto failing = exchanges_;  // each takes itself out
  for (const auto& [key, exchange] : failing) exchange->fail(error);
}

void Server::Impl::close_idle_connections() {
  for (const auto& connection : connections_) {
    if (connection->is_idle()) connection->close();
  }
}

bool Server::Impl::is_quiet() const {
  if (!exchanges_.empty()) return false;
  for (const auto& connection : connections_) {
    if (connection->is_answering()) return false;
  }
  return true;
}

// --- the public face ---

Server::Server(const ServeSettings& settings, Backend& backend)
    : impl_(std::make_unique<Impl>(settings, backend)) {}
Server::~Server() = default;

std::uint16_t Server::port() const { return impl_->port(); }
std::string Server::url() const { return impl_->url(); }
int Server::run(const std::atomic<bool>& stop) { return impl_->run(stop); }
void Server::fail(const std::string& message) { impl_->fail(message); }

void raise_open_files_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // where it fails, the old limit stays
}

}  // namespace sluice
