#include "engine/commands/manual.h"

#include <fmt/format.h>

namespace sluice {
namespace {

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

std::string words_of(const CommandHelp& help) {
  std::string words;
  for (const CommandHelp::Option& option : help.options) {
    words += words.empty() ? "--" : " --";
    words += option.name;
  }
  return words;
}

/// Inside of '...', which ends it, as a description that _arguments reads: [ ] : are its own.
std::string for_arguments(std::string text) {
  text = replaced(std::move(text), "\\", "\\\\");
  for (const char* special : {"[", "]", ":"})
    text = replaced(std::move(text), special, std::string("\\") + special);
  return replaced(std::move(text), "'", "'\\''");
}

/// Inside of '...', as an entry of _describe: its name ends at a colon.
std::string for_describe(std::string text) {
  return replaced(replaced(std::move(text), ":", "\\:"), "'", "'\\''");
}

std::string for_man(std::string text) {
  text = replaced(std::move(text), "\\", "\\e");
  text = replaced(std::move(text), "-", "\\-");
  if (!text.empty() && (text[0] == '.' || text[0] == '\'')) text.insert(0, "\\&");
  return replaced(replaced(std::move(text), "\n.", "\n\\&."), "\n'", "\n\\&'");
}

std::string man_option(const CommandHelp::Option& option) {
  std::string text = ".TP\n.B ";
  if (option.letter != '\0') text += fmt::format("\\-{}, ", option.letter);
  text += "\\-\\-" + for_man(option.name);
  if (option.takes_value) text += " " + for_man(option.value);
  return text + "\n" + for_man(option.text) + "\n";
}

}  // namespace

std::string bash_completion(std::span<const NamedCommand> commands) {
  std::string names;
  std::string cases;
  for (const NamedCommand& command : commands) {
    names += command.name + " ";
    cases += fmt::format("    {}) words='{}' ;;\n", command.name, words_of(command.help));
  }
  return fmt::format(R"(# bash completion for sluice
_sluice() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} words=
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W '{}--help --version' -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{}  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _sluice sluice
)",
                     names, cases);
}

std::string zsh_completion(std::span<const NamedCommand> commands) {
  std::string names;
  std::string cases;
  for (const NamedCommand& command : commands) {
    names += fmt::format("    '{}:{}'\n", command.name, for_describe(command.summary));
    cases += fmt::format("    {})\n      _arguments \\\n", command.name);
    for (const CommandHelp::Option& option : command.help.options) {
      cases += fmt::format("        '--{}[{}]{}' \\\n", option.name, for_arguments(option.text),
                           option.takes_value ? ":value:_files" : "");
    }
    cases += command.help.takes_operand ? "        '*:file:_files'\n" : "        && return\n";
    cases += "      ;;\n";
  }
  return fmt::format(R"(#compdef sluice
_sluice() {{
  local -a commands
  commands=(
{}  )
  if ((CURRENT == 2)); then
    _describe command commands
    _arguments '--help[print the help]' '--version[print the version]'
    return
  fi
  local command=$words[2]
  shift words
  ((CURRENT--))
  case $command in
{}  esac
}}
_sluice "$@"
)",
                     names, cases);
}

std::string man_page(std::span<const NamedCommand> commands, const std::string& version) {
  std::string text = fmt::format(R"(.TH SLUICE 1 "" "sluice {}" "User Commands"
.SH NAME
sluice \- runs large language models on one machine whose parts differ
.SH SYNOPSIS
.B sluice
.I COMMAND
[options]
.SH DESCRIPTION
Sluice runs a model on a GPU and a CPU together, and keeps weights where there is room: in the
memory of the GPU, main memory, CXL memory or on a disk.
.SH COMMANDS
)",
                                 for_man(version));
  for (const NamedCommand& command : commands)
    text += fmt::format(".TP\n.B {}\n{}\n", for_man(command.name), for_man(command.summary));
  for (const NamedCommand& command : commands) {
    text += fmt::format(".SH {}\n.B {}\n.PP\n{}\n", for_man(command.name),
                        for_man(command.help.usage), for_man(command.help.description));
    for (const CommandHelp::Option& option : command.help.options) text += man_option(option);
  }
  return text + R"(.SH EXIT STATUS
0 on success, 1 on an error, 2 on a wrong command line, 130 after an interrupt.
)";
}

}  // namespace sluice
