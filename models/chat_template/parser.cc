#include "models/chat_template/parser.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "models/chat_template/lexer.h"

namespace sluice::jinja {
namespace {

constexpr int max_depth = 200;  ///< of a parsed template: rendering calls itself for each level

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Block run() {
    try {
      Block block = parse_block({});
      if (!at(TokenKind::end)) unexpected("a tag");
      return block;
    } catch (const Error& error) {
      throw Error("line {}: {}", token().line, error.what());
    }
  }

 private:
  /// One level deeper until it goes; a chain of operators adds a level for each.
  class Depth {
   public:
    explicit Depth(Parser& parser) : parser_(parser), before_(parser.depth_) { deeper(); }
    ~Depth() { parser_.depth_ = before_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    void deeper() {
      if (++parser_.depth_ > max_depth) throw Error("nested more than {} levels deep", max_depth);
    }

   private:
    Parser& parser_;
    int before_;
  };

  const Token& token(std::size_t ahead = 0) const {
    return tokens_[std::min(next_ + ahead, tokens_.size() - 1)];
  }
  bool at(TokenKind kind) const { return token().kind == kind; }
  bool at_symbol(std::string_view symbol, std::size_t ahead = 0) const {
    return token(ahead).kind == TokenKind::symbol && token(ahead).text == symbol;
  }
  bool at_name(std::string_view name, std::size_t ahead = 0) const {
    return token(ahead).kind == TokenKind::name && token(ahead).text == name;
  }
  Token take() {
    Token taken = token();
    if (next_ + 1 < tokens_.size()) ++next_;
    return taken;
  }
  bool skip_symbol(std::string_view symbol) {
    const bool is_there = at_symbol(symbol);
    if (is_there) take();
    return is_there;
  }
  bool skip_name(std::string_view name) {
    const bool is_there = at_name(name);
    if (is_there) take();
    return is_there;
  }
  void expect_symbol(std::string_view symbol) {
    if (!skip_symbol(symbol)) unexpected(fmt::format("'{}'", symbol));
  }
  std::string expect_name() {
    if (!at(TokenKind::name)) unexpected("a name");
    return take().text;
  }
  void expect_block_end() {
    if (!at(TokenKind::block_end)) unexpected("'%}'");
    take();
  }
  [[noreturn]] void unexpected(std::string_view expected) const {
    throw Error("found {}, expected {}", quote(token().text), expected);
  }

  template <typename Node>
  static ExpressionPtr make(int line, Node node) {
    auto expression = std::make_unique<Expression>();
    expression->line = line;
    expression->node = std::move(node);
    return expression;
  }

  // Statements.

  /// Text and tags up to `{% end %}` with one of these names, which is left for the caller.
  Block parse_block(std::initializer_list<std::string_view> ends) {
    const Depth depth(*this);
    Block block;
    while (!at(TokenKind::end)) {
      const int line = token().line;
      if (at(TokenKind::data)) {
        block.push_back({line, Data{take().text}});
      } else if (at(TokenKind::variable_begin)) {
        take();
        block.push_back({line, Print{parse_tuple_expression()}});
        if (!at(TokenKind::variable_end)) unexpected("'}}'");
        take();
      } else {
        take();
        const auto is_here = [this](std::string_view name) { return at_name(name); };
        if (std::any_of(ends.begin(), ends.end(), is_here)) return block;
        block.push_back({line, parse_statement()});
      }
    }
    if (ends.size() > 0) throw Error("'{}' is missing", *(ends.end() - 1));
    return block;
  }

  /// A block with the end tag behind it.
  Block parse_body(std::string_view end) {
    expect_block_end();
    Block block = parse_block({end});
    take();
    expect_block_end();
    return block;
  }

  using Node = decltype(Statement::node);

  Node parse_statement() {
    if (!at(TokenKind::name)) unexpected("the name of a tag");
    const std::string name = token().text;
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    if (name == "call") return parse_call_block();
    if (name == "filter") return parse_filter_block();
    if (name == "with") return parse_with();
    if (name == "print") return parse_print();
    if (name == "generation") {
      take();
      const int loops = std::exchange(num_loops_, 0);
      Generation generation{parse_body("endgeneration")};
      num_loops_ = loops;
      return generation;
    }
    if (name == "break" || name == "continue") return parse_jump();
    throw Error("unknown or unsupported tag {}", quote(name));
  }

  Node parse_print() {
    Concatenation all;
    const int line = take().line;
    do {
      all.parts.push_back(parse_expression());
    } while (skip_symbol(","));
    expect_block_end();
    return Print{make(line, std::move(all))};
  }

  Node parse_jump() {
    const bool is_break = take().text == "break";
    if (num_loops_ == 0) throw Error("break or continue outside of a loop");
    expect_block_end();
    if (is_break) return Break{};
    return Continue{};
  }

  Node parse_if() {
    If statement;
    do {
      take();
      ExpressionPtr condition = parse_tuple_expression(false);
      expect_block_end();
      statement.branches.emplace_back(std::move(condition), parse_block({"elif", "else", "endif"}));
    } while (at_name("elif"));
    if (skip_name("else")) {
      expect_block_end();
      statement.otherwise = parse_block({"endif"});
    }
    take();
    expect_block_end();
    return statement;
  }

  Node parse_for() {
    For loop;
    take();
    loop.target = parse_target("in");
    if (!skip_name("in")) unexpected("'in'");
    loop.items = parse_tuple_expression(false, "recursive");
    if (skip_name("if")) loop.condition = parse_expression();
    loop.is_recursive = skip_name("recursive");
    expect_block_end();
    ++num_loops_;
    loop.body = parse_block({"else", "endfor"});
    --num_loops_;
    if (skip_name("else")) {
      expect_block_end();
      loop.otherwise = parse_block({"endfor"});
    }
    take();
    expect_block_end();
    return loop;
  }

  /// `a`, `a.b` where attributes are allowed, `a, b` or `(a, b)`.
  Target parse_target(std::string_view end = {}) {
    const Depth depth(*this);
    Target first = parse_one_target();
    if (!at_symbol(",")) return first;
    Target all;
    all.parts.push_back(std::move(first));
    while (skip_symbol(",")) {
      if (!at(TokenKind::name) && !at_symbol("(")) break;
      if (!end.empty() && at_name(end)) break;
      all.parts.push_back(parse_one_target());
    }
    return all;
  }

  Target parse_one_target() {
    const Depth depth(*this);
    if (skip_symbol("(")) {
      Target inner = parse_target();
      expect_symbol(")");
      return inner;
    }
    Target target;
    target.name = expect_name();
    for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
      if (target.name == constant) throw Error("'{}' cannot be set", constant);
    }
    if (skip_symbol(".")) target.attribute = expect_name();
    return target;
  }

  Node parse_set() {
    take();
    Target target = parse_target();
    if (skip_symbol("=")) {
      Set set{std::move(target), parse_tuple_expression()};
      expect_block_end();
      return set;
    }
    if (!target.parts.empty()) unexpected("'='");
    SetBlock set{std::move(target), parse_filters(nullptr), {}};
    set.body = parse_body("endset");
    return set;
  }

  /// A function's body; notes which special names it uses.
  void parse_function_body(MacroDefinition& macro, std::string_view end) {
    functions_.push_back(&macro);
    const int loops = std::exchange(num_loops_, 0);
    macro.body = parse_body(end);
    num_loops_ = loops;
    functions_.pop_back();
  }

  void parse_parameters(MacroDefinition& macro) {
    take();
    while (!at_symbol(")")) {
      if (!macro.parameters.empty()) expect_symbol(",");
      if (at_symbol(")")) break;
      Parameter parameter{expect_name(), nullptr};
      if (skip_symbol("=")) {
        parameter.fallback = parse_expression();
      } else if (!macro.parameters.empty() && macro.parameters.back().fallback != nullptr) {
        throw Error("parameter '{}' without a default stands behind one with a default",
                    parameter.name);
      }
      macro.parameters.push_back(std::move(parameter));
    }
    take();
  }

  Node parse_macro() {
    take();
    MacroDefinition macro;
    macro.name = expect_name();
    if (!at_symbol("(")) unexpected("'('");
    parse_parameters(macro);
    parse_function_body(macro, "endmacro");
    return macro;
  }

  Node parse_call_block() {
    take();
    CallBlock block;
    if (at_symbol("(")) parse_parameters(block.caller);
    block.call = parse_expression();
    if (!std::holds_alternative<CallOf>(block.call->node)) unexpected("a call");
    parse_function_body(block.caller, "endcall");
    return block;
  }

  Node parse_filter_block() {
    take();
    FilterBlock block;
    const int line = token().line;
    block.filter = parse_filters(parse_filter(line, nullptr));
    block.body = parse_body("endfilter");
    return block;
  }

  Node parse_with() {
    take();
    With with;
    while (!at(TokenKind::block_end)) {
      if (!with.values.empty()) expect_symbol(",");
      Target target = parse_one_target();
      expect_symbol("=");
      with.values.emplace_back(std::move(target), parse_expression());
    }
    with.body = parse_body("endwith");
    return with;
  }

  // Expressions, the loosest first.

  /// An expression, or several with commas between them: a tuple.
  ExpressionPtr parse_tuple_expression(bool with_conditional = true, std::string_view end = {}) {
    const Depth depth(*this);
    const int line = token().line;
    ExpressionPtr first = with_conditional ? parse_expression() : parse_or();
    if (!at_symbol(",")) return first;
    ListLiteral tuple{{}, true};
    tuple.items.push_back(std::move(first));
    while (skip_symbol(",")) {
      const bool ends = at(TokenKind::variable_end) || at(TokenKind::block_end) || at_symbol(")") ||
                        (!end.empty() && at_name(end));
      if (ends) break;
      tuple.items.push_back(with_conditional ? parse_expression() : parse_or());
    }
    return make(line, std::move(tuple));
  }

  ExpressionPtr parse_expression() {
    Depth depth(*this);
    const int line = token().line;
    ExpressionPtr value = parse_or();
    while (skip_name("if")) {
      depth.deeper();
      ExpressionPtr condition = parse_or();
      ExpressionPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
      value = make(line, Conditional{std::move(condition), std::move(value), std::move(otherwise)});
    }
    return value;
  }

  ExpressionPtr parse_or() {
    Depth depth(*this);
    const int line = token().line;
    ExpressionPtr left = parse_and();
    while (skip_name("or")) {
      depth.deeper();
      left = make(line, Logical{false, std::move(left), parse_and()});
    }
    return left;
  }

  ExpressionPtr parse_and() {
    Depth depth(*this);
    const int line = token().line;
    ExpressionPtr left = parse_not();
    while (skip_name("and")) {
      depth.deeper();
      left = make(line, Logical{true, std::move(left), parse_not()});
    }
    return left;
  }

  ExpressionPtr parse_not() {
    const Depth depth(*this);
    const int line = token().line;
    if (skip_name("not")) return make(line, Not{parse_not()});
    return parse_comparison();
  }

  /// The relation here, taken; nothing if there is none.
  std::optional<Relation> take_relation() {
    static const std::map<std::string_view, Relation> symbols = {
        {"==", Relation::equal},   {"!=", Relation::unequal}, {"<", Relation::less},
        {"<=", Relation::at_most}, {">", Relation::greater},  {">=", Relation::at_least}};
    if (at(TokenKind::symbol)) {
      const auto found = symbols.find(token().text);
      if (found == symbols.end()) return std::nullopt;
      take();
      return found->second;
    }
    if (skip_name("in")) return Relation::in;
    if (!at_name("not") || !at_name("in", 1)) return std::nullopt;
    take();
    take();
    return Relation::not_in;
  }

  ExpressionPtr parse_comparison() {
    const int line = token().line;
    ExpressionPtr first = parse_sum();
    Comparison comparison;
    while (const auto relation = take_relation())
      comparison.others.emplace_back(*relation, parse_sum());
    if (comparison.others.empty()) return first;
    comparison.first = std::move(first);
    return make(line, std::move(comparison));
  }

  using Level = ExpressionPtr (Parser::*)();

  /// `next` with the operators of one precedence between.
  ExpressionPtr parse_chain(std::initializer_list<std::pair<std::string_view, Operator>> symbols,
                            Level next) {
    Depth depth(*this);
    const int line = token().line;
    ExpressionPtr left = (this->*next)();
    while (true) {
      const auto* const found =
          std::find_if(symbols.begin(), symbols.end(),
                       [this](const auto& symbol) { return at_symbol(symbol.first); });
      if (found == symbols.end()) return left;
      take();
      depth.deeper();
      left = make(line, Binary{found->second, std::move(left), (this->*next)()});
    }
  }

  ExpressionPtr parse_sum() {
    return parse_chain({{"+", Operator::add}, {"-", Operator::subtract}},
                       &Parser::parse_concatenation);
  }

  ExpressionPtr parse_concatenation() {
    const int line = token().line;
    ExpressionPtr first = parse_product();
    if (!at_symbol("~")) return first;
    Concatenation concatenation;
    concatenation.parts.push_back(std::move(first));
    while (skip_symbol("~")) concatenation.parts.push_back(parse_product());
    return make(line, std::move(concatenation));
  }

  ExpressionPtr parse_product() {
    return parse_chain({{"*", Operator::multiply},
                        {"/", Operator::divide},
                        {"//", Operator::floor_divide},
                        {"%", Operator::modulo}},
                       &Parser::parse_power);
  }

  ExpressionPtr parse_power() {
    return parse_chain({{"**", Operator::power}}, &Parser::parse_filtered);
  }

  ExpressionPtr parse_filtered() { return parse_filters_and_tests(parse_signed()); }

  ExpressionPtr parse_signed() {
    const Depth depth(*this);
    const int line = token().line;
    ExpressionPtr value;
    if (at_symbol("-") || at_symbol("+")) {
      const bool is_negative = take().text == "-";
      value = make(line, Signed{parse_signed(), is_negative});
    } else {
      value = parse_primary();
    }
    return parse_postfix(std::move(value));
  }

  ExpressionPtr parse_primary() {
    const Token first = token();
    switch (first.kind) {
      case TokenKind::name:
        take();
        return parse_name(first);
      case TokenKind::string:
        return parse_strings();
      case TokenKind::integer:
      case TokenKind::real:
        take();
        return parse_number(first);
      default:
        break;
    }
    if (skip_symbol("(")) return parse_parentheses(first.line);
    if (skip_symbol("[")) return parse_list(first.line);
    if (skip_symbol("{")) return parse_dict(first.line);
    unexpected("an expression");
  }

  ExpressionPtr parse_name(const Token& name) {
    if (name.text == "true" || name.text == "True") return make(name.line, Literal{Value(true)});
    if (name.text == "false" || name.text == "False") return make(name.line, Literal{Value(false)});
    if (name.text == "none" || name.text == "None") return make(name.line, Literal{Value(None{})});
    for (MacroDefinition* const macro : functions_) {
      macro->uses_varargs |= name.text == "varargs";
      macro->uses_kwargs |= name.text == "kwargs";
      macro->uses_caller |= name.text == "caller";
    }
    return make(name.line, Name{name.text});
  }

  /// Strings beside each other are one.
  ExpressionPtr parse_strings() {
    const int line = token().line;
    std::string text;
    while (at(TokenKind::string)) text += take().text;
    return make(line, Literal{Value::constant(std::move(text))});
  }

  static ExpressionPtr parse_number(const Token& number) {
    if (number.kind == TokenKind::real)
      return make(number.line, Literal{Value(std::strtod(number.text.c_str(), nullptr))});
    std::int64_t value = 0;
    const char* const end = number.text.data() + number.text.size();
    if (std::from_chars(number.text.data(), end, value).ec != std::errc())
      throw Error("{} leaves the whole numbers of 64 bits", quote(number.text));
    return make(number.line, Literal{Value(value)});
  }

  ExpressionPtr parse_parentheses(int line) {
    if (skip_symbol(")")) return make(line, ListLiteral{{}, true});
    ExpressionPtr value = parse_tuple_expression();
    expect_symbol(")");
    return value;
  }

  ExpressionPtr parse_list(int line) {
    ListLiteral list;
    while (!at_symbol("]")) {
      if (!list.items.empty()) expect_symbol(",");
      if (at_symbol("]")) break;
      list.items.push_back(parse_expression());
    }
    take();
    return make(line, std::move(list));
  }

  ExpressionPtr parse_dict(int line) {
    DictLiteral dict;
    while (!at_symbol("}")) {
      if (!dict.entries.empty()) expect_symbol(",");
      if (at_symbol("}")) break;
      ExpressionPtr key = parse_expression();
      expect_symbol(":");
      dict.entries.emplace_back(std::move(key), parse_expression());
    }
    take();
    return make(line, std::move(dict));
  }

  ExpressionPtr parse_postfix(ExpressionPtr value) {
    Depth depth(*this);
    while (true) {
      const int line = token().line;
      if (skip_symbol(".")) {
        value = parse_member(line, std::move(value));
      } else if (skip_symbol("[")) {
        value = parse_subscript(line, std::move(value));
      } else if (at_symbol("(")) {
        value = make(line, CallOf{std::move(value), parse_arguments()});
      } else {
        return value;
      }
      depth.deeper();
    }
  }

  ExpressionPtr parse_member(int line, ExpressionPtr value) {
    if (at(TokenKind::integer)) return make(line, ItemOf{std::move(value), parse_number(take())});
    return make(line, AttributeOf{std::move(value), expect_name()});
  }

  ExpressionPtr parse_subscript(int line, ExpressionPtr value) {
    ExpressionPtr bounds[3];
    if (!at_symbol(":")) {
      ExpressionPtr key = parse_tuple_key();
      if (skip_symbol("]")) return make(line, ItemOf{std::move(value), std::move(key)});
      bounds[0] = std::move(key);
    }
    for (int i = 1; i < 3 && skip_symbol(":"); ++i) {
      if (!at_symbol(":") && !at_symbol("]")) bounds[i] = parse_expression();
    }
    expect_symbol("]");
    return make(line, SliceOf{std::move(value), std::move(bounds[0]), std::move(bounds[1]),
                              std::move(bounds[2])});
  }

  ExpressionPtr parse_tuple_key() {
    const int line = token().line;
    ExpressionPtr first = parse_expression();
    if (!at_symbol(",")) return first;
    ListLiteral tuple{{}, true};
    tuple.items.push_back(std::move(first));
    while (skip_symbol(",")) tuple.items.push_back(parse_expression());
    return make(line, std::move(tuple));
  }

  CallArguments parse_arguments() {
    CallArguments arguments;
    expect_symbol("(");
    for (bool is_first = true; !at_symbol(")"); is_first = false) {
      if (!is_first) expect_symbol(",");
      if (at_symbol(")")) break;
      parse_argument(arguments);
    }
    take();
    return arguments;
  }

  void parse_argument(CallArguments& arguments) {
    if (skip_symbol("**")) {
      if (arguments.more_named != nullptr) throw Error("a call has '**' twice");
      arguments.more_named = parse_expression();
    } else if (skip_symbol("*")) {
      if (arguments.more_positional != nullptr) throw Error("a call has '*' twice");
      arguments.more_positional = parse_expression();
    } else if (at(TokenKind::name) && at_symbol("=", 1)) {
      std::string name = take().text;
      take();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (!arguments.named.empty() || arguments.more_named != nullptr)
        throw Error("an argument without a name stands behind one with a name");
      arguments.positional.push_back(parse_expression());
    }
  }

  ExpressionPtr parse_filters_and_tests(ExpressionPtr value) {
    Depth depth(*this);
    while (true) {
      const int line = token().line;
      if (at_symbol("|")) {
        value = parse_filters(std::move(value));
      } else if (skip_name("is")) {
        value = parse_test(line, std::move(value));
      } else if (at_symbol("(")) {
        value = make(line, CallOf{std::move(value), parse_arguments()});
      } else {
        return value;
      }
      depth.deeper();
    }
  }

  /// `|a|b` behind a value, or behind nothing in a block's tag.
  ExpressionPtr parse_filters(ExpressionPtr value) {
    Depth depth(*this);
    while (at_symbol("|")) {
      const int line = take().line;
      value = parse_filter(line, std::move(value));
      depth.deeper();
    }
    return value;
  }

  /// "a.b" is one name.
  std::string parse_dotted_name() {
    std::string name = expect_name();
    while (skip_symbol(".")) name += "." + expect_name();
    return name;
  }

  ExpressionPtr parse_filter(int line, ExpressionPtr value) {
    FilterOf filter{std::move(value), parse_dotted_name(), {}};
    if (at_symbol("(")) filter.arguments = parse_arguments();
    return make(line, std::move(filter));
  }

  /// Whether what stands here is the argument of a test without parentheses.
  bool at_test_argument() const {
    switch (token().kind) {
      case TokenKind::name:
        return !at_name("else") && !at_name("or") && !at_name("and");
      case TokenKind::string:
      case TokenKind::integer:
      case TokenKind::real:
        return true;
      default:
        return at_symbol("[") || at_symbol("{");
    }
  }

  ExpressionPtr parse_test(int line, ExpressionPtr value) {
    const bool is_negated = skip_name("not");
    TestOf test{std::move(value), parse_dotted_name(), {}};
    if (at_symbol("(")) {
      test.arguments = parse_arguments();
    } else if (at_test_argument()) {
      if (at_name("is")) throw Error("two tests with 'is' behind each other");
      test.arguments.positional.push_back(parse_postfix(parse_primary()));
    }
    ExpressionPtr result = make(line, std::move(test));
    return is_negated ? make(line, Not{std::move(result)}) : std::move(result);
  }

  std::vector<Token> tokens_;
  std::size_t next_ = 0;
  int depth_ = 0;
  int num_loops_ = 0;  ///< around what is parsed, within the innermost function
  std::vector<MacroDefinition*> functions_;
};

}  // namespace

Block parse(std::string_view source) { return Parser(source).run(); }

}  // namespace sluice::jinja
