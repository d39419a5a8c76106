# Makes C definitions, which do nothing, of the functions that leafpack.h declares: a library of these has the
# types of the interface in its debug information, and none of torch's. `header` is what it includes.
BEGIN {
  RS = ";"
  print "#include \"" header "\""
}
{
  gsub(/\/\*[^*]*\*+([^\/*][^*]*\*+)*\//, "")
  count = split($0, lines, "\n")
  text = ""
  for (i = 1; i <= count; ++i) {
    if (lines[i] ~ /^#/ || lines[i] ~ /\\$/) continue
    text = text " " lines[i]
  }
  if (!match(text, /LEAFPACK_(CALL|API) .*\)/)) next
  text = substr(text, RSTART, RLENGTH)
  empty = text ~ /^LEAFPACK_API void /
  sub(/^LEAFPACK_CALL /, "leafpack_error* ", text)
  sub(/^LEAFPACK_API /, "", text)
  print text (empty ? " {}" : " { return 0; }")
}
