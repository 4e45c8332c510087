"""Rules on bash as it is written: what the shell does with it before the engine sees a word.

The reader (`kimi_nb.check.reading`, mostly `quirks`) finds these faults; the rules that report them
are here.
"""

from __future__ import annotations

from kimi_nb.check.findings import ERROR, NOTE, WARNING
from kimi_nb.check.rules.registry import of_reading, rule

for _identity, _severity, _says, _fix, _why in (
    (
        "shell/continuation-spaced",
        ERROR,
        "A backslash that continues a line is its last character.",
        "Take the spaces after the backslash out.",
        "The backslash then escapes a space: the command ends there, and the next line is run as a "
        "command of its own.",
    ),
    (
        "shell/continuation-glued",
        ERROR,
        "A blank stands before a backslash that continues a line.",
        "Put a blank before the backslash, or indent the next line.",
        "The shell takes the backslash and the line end away, and nothing else: the last word of the "
        "line and the flag below become one word.",
    ),
    (
        "shell/missing-file",
        WARNING,
        "What a script or a document runs, applies or links to is in its folder.",
        "Use the name that the file has.",
        "'No such file or directory', or a link that leads nowhere. Only a whole folder is checked.",
    ),
    (
        "shell/assignment-split",
        WARNING,
        "A value with blanks in it has quotes around it.",
        "Put quotes around the whole value, or leave export out before a program; folders and "
        "libraries are joined with a colon.",
        "The variable gets the first word only; export takes the others for names of variables: "
        "'not a valid identifier'.",
    ),
    (
        "shell/conflict",
        ERROR,
        "No mark of a merge is left in.",
        "Keep one of the two sides, and take out the lines with <<<<<<<, ======= and >>>>>>>.",
        "git leaves both sides where it could not join them: bash and YAML stop at the mark, and of a "
        "document nobody knows which side is meant.",
    ),
    (
        "shell/continuation-list",
        WARNING,
        "A list with commas that goes on in the next line goes on at its beginning.",
        "Begin the next line in the first column, or write the list in one line.",
        "The shell takes the backslash and the line end away and leaves the indentation: the list "
        "ends at the comma, and its rest becomes words of their own.",
    ),
    (
        "shell/dollar-lost",
        WARNING,
        "A variable that is added to itself has a dollar sign.",
        "Write $NAME where its old value belongs.",
        "Without it the name itself becomes a part of the value, and what the variable held is lost.",
    ),
    (
        "shell/continuation-lost",
        ERROR,
        "Every line of a command but the last ends in a backslash.",
        "Put a backslash at the end of the line before.",
        "The command starts without the flags below; they are run as a command, '--port: command not "
        "found', while the engine loads with the defaults.",
    ),
    (
        "shell/continuation-comment",
        ERROR,
        "No comment stands inside a continued command.",
        "Move the comment above the command.",
        "The shell joins the lines first: the comment swallows the flag behind it, and ends the "
        "command before the lines below.",
    ),
    (
        "shell/continuation-end",
        NOTE,
        "The last line of a command has no backslash.",
        "Take the last backslash out.",
        "It joins the next line to the command; harmless only while that is empty.",
    ),
    (
        "shell/tilde",
        WARNING,
        "A home folder stands where the shell expands it.",
        "Write $HOME, or begin the word with the tilde, outside of quotes.",
        "bash expands a tilde at the beginning of a word alone: the program looks for a folder that "
        "is called ~.",
    ),
    (
        "shell/assignment",
        ERROR,
        "A variable is set as NAME=value: no blank beside the equals sign, no dollar sign before it.",
        "Write NAME=value.",
        "bash takes the first word for a command: 'command not found', and the variable keeps what "
        "it had.",
    ),
    (
        "shell/heredoc",
        ERROR,
        "The word that ends a heredoc is alone on its line.",
        "Take the blanks beside it out; with <<- it may be indented by tabs.",
        "To bash the heredoc goes on to the end of the script: the commands below are written to "
        "the file instead of run.",
    ),
    (
        "shell/blank",
        ERROR,
        "Words are parted by plain blanks.",
        "Type the blank anew; copying from a page or an input method changes it.",
        "A no-break or full-width blank is a letter to the shell: two words become one, or an "
        "indentation becomes a command.",
    ),
    (
        "shell/unexpanded",
        ERROR,
        "No variable stands between single quotes in a value of the engine.",
        'Close the single quotes around it: \'{"model": "\'"$MODEL"\'"}\'.',
        "Between single quotes nothing is put in: the engine looks for a model or a port of the name "
        "$NAME.",
    ),
    (
        "shell/letters",
        WARNING,
        "A word that sed looks for stands without brackets.",
        "Take the brackets away.",
        "Brackets stand for one of the letters in them: sed deletes each line that begins with one.",
    ),
    (
        "shell/source-piped",
        WARNING,
        "What a script sources stands in no pipe.",
        "Write its output to a file, and read that below.",
        "Each part of a pipe is a process of its own: the variables that are set there end with it.",
    ),
    (
        "shell/words",
        WARNING,
        "A variable that holds several words stands in quotes.",
        'Write "$NAME".',
        "Without quotes each word becomes one of its own: the flag gets the first, and the others "
        "belong to nothing.",
    ),
    (
        "shell/json-text",
        WARNING,
        "A text of a script that is JSON is JSON as a whole.",
        "Write numbers out, and check commas, quotes and brackets.",
        "Whoever reads it (a server, jq, a program) refuses the whole.",
    ),
    (
        "shell/unexported",
        WARNING,
        "A variable for the engine is exported.",
        "Write export before it, or put it in front of the command on the same line.",
        "A plain assignment stays in the shell: the engine never sees it.",
    ),
    (
        "shell/unset",
        WARNING,
        "A variable that a command uses is set.",
        "Set it above, or say in the script that the caller gives it: ${NAME:?}.",
        "An empty word stands in its place: a flag without value, a container without name.",
    ),
    (
        "shell/substitution",
        ERROR,
        "A variable is expanded with braces, a command with parentheses.",
        "Write ${NAME} for the value of a variable, $(command) for what a command prints.",
        "bash runs what stands in $( ), 'command not found', and an empty text takes its place; "
        "${name -x} is a 'bad substitution', which ends the command.",
    ),
    (
        "shell/json-unquoted",
        ERROR,
        "JSON stands in single quotes.",
        "Put single quotes around the whole of it.",
        "The shell takes the double quotes away and splits {a,b} into two words: what arrives is no "
        "JSON.",
    ),
    (
        "shell/placeholder",
        WARNING,
        "No placeholder is left in.",
        "Put your own value in.",
        "A script that still has <node0_ip> or 141.xx.xx.1 fails at its first connection.",
    ),
    (
        "shell/backticks",
        WARNING,
        "No backticks stand around a value.",
        "Take the backticks out; they are a document's mark for code.",
        "The shell runs what stands in backticks: 'Permission denied' or 'command not found', and the "
        "flag has no value.",
    ),
    (
        "shell/dash",
        ERROR,
        "A flag begins with plain dashes.",
        "Type the dashes anew; copying from a page changes them.",
        "A typographic dash or quote is a letter to the shell and the parser: the flag becomes a "
        "stray word.",
    ),
    (
        "shell/syntax",
        WARNING,
        "A script is one that bash can read.",
        "Look for a quote or bracket that is not closed, above this line.",
        "bash stops here, after it ran everything above.",
    ),
    (
        "shell/line-ends",
        ERROR,
        "Lines end as Unix lines do.",
        "Convert the file: sed -i 's/\\r$//' FILE.",
        "The carriage return becomes part of the last word of each line: a backslash before it "
        "continues nothing.",
    ),
):
    rule(
        _identity,
        _severity,
        _says,
        _fix,
        "GNU bash: quoting, word splitting, line continuation",
        needs=("scripts",),
    )(of_reading(_identity, _why, __name__))

rule(
    "shell/yaml-folded",
    WARNING,
    "A command over several lines of YAML stands in a block that keeps them.",
    "Begin the block with a vertical bar, or write the command in one line.",
    "YAML 1.2, chapter 7.3.3: the line ends of a plain value become blanks",
    needs=("scripts",),
)(
    of_reading(
        "shell/yaml-folded",
        "The backslash no longer stands at the end of its line: to the shell it makes the blank "
        "behind it a part of the next word, and no program has that name.",
        __name__,
    )
)

rule(
    "shell/yaml",
    ERROR,
    "A compose or Kubernetes file is YAML.",
    "Look at this line and the one above: indentation by spaces alone, a bracket or quote that is "
    "not closed.",
    "YAML 1.1, as docker compose and kubectl read it",
    needs=("scripts",),
)(
    of_reading(
        "shell/yaml",
        "docker compose and kubectl refuse the whole file: nothing of it "
        "starts, and nothing of it was checked here.",
        __name__,
    )
)
