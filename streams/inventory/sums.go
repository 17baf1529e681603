package inventory

import (
	"fmt"
	"iter"
	"strings"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/digest"
)

// sums reads the output of md5sum and similar tools (GNU coreutils manual, "md5sum invocation"; FreeBSD md5(1)):
//
//	HEX  NAME         text mode
//	HEX *NAME         binary mode
//	\HEX  NA\\ME\n    a name with escapes
//	SHA256 (NAME) = HEX, and openssl's SHA256(NAME)= HEX
//	HEX NAME          BSD, reversed
//
// Lines that begin with # are comments. If no algorithm is given, the length of the digest determines it.
func sums(in *input, algorithm string) iter.Seq2[Entry, error] {
	if algorithm == "" && strings.Contains(strings.ToLower(base(in.name)), "b2") {
		algorithm = "blake2b-512" // from b2sum; by its length it would be SHA-512
	}
	return in.each(func(line string) (Entry, error) {
		if strings.HasPrefix(line, "#") {
			return Entry{}, errNoRow
		}
		alg, hex, name, reason := splitSum(line, algorithm)
		if reason != "" {
			return Entry{}, in.fault("%s", reason)
		}
		return Entry{Item: name, Size: -1, Digests: digest.Set{alg: hex}}, nil
	})
}

// splitSum parses one line. If it is invalid, reason is not empty.
func splitSum(line, algorithm string) (alg, hex, name, reason string) {
	line = strings.TrimLeft(line, " \t")
	rest, escaped := strings.CutPrefix(line, `\`)
	alg, name, hex, tagged := splitTagged(rest)
	if !tagged {
		n := hexRun(rest)
		if n == 0 || n == len(rest) || rest[n] != ' ' && rest[n] != '\t' {
			return "", "", "", "it is not a line of sums: want HEX, two spaces or a space and *, NAME; or ALGORITHM (NAME) = HEX"
		}
		hex, name = rest[:n], rest[n+1:]
		if name != "" && (name[0] == ' ' || name[0] == '*') {
			name = name[1:]
		}
	}
	if escaped {
		if name, reason = unescape(name); reason != "" {
			return "", "", "", reason
		}
	}
	switch name {
	case "":
		return "", "", "", "there is no name after the sum"
	case "-":
		return "", "", "", "it is the sum of standard input, of no file"
	}
	alg, hex, reason = digestOf(alg, algorithm, hex)
	return alg, hex, name, reason
}

// splitTagged parses a line in the BSD format.
func splitTagged(line string) (alg, name, hex string, ok bool) {
	open := strings.IndexByte(line, '(')
	end := strings.LastIndex(line, ")")
	if open <= 0 || end < open {
		return "", "", "", false
	}
	hex, ok = strings.CutPrefix(strings.TrimLeft(line[end+1:], " "), "=")
	hex = strings.TrimSpace(hex)
	if alg = strings.TrimSuffix(line[:open], " "); !ok || hexRun(hex) != len(hex) || strings.ContainsAny(alg, " \t") {
		return "", "", "", false
	}
	return alg, line[open+1 : end], hex, true
}

// unescape reverses the escapes of coreutils in names of lines that begin with a backslash.
func unescape(name string) (text, reason string) {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] != '\\' {
			b.WriteByte(name[i])
			continue
		}
		if i++; i == len(name) {
			return "", "the name ends in the middle of an escape"
		}
		switch name[i] {
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case '\\':
			b.WriteByte('\\')
		default:
			return "", fmt.Sprintf(`the name has the escape \%c; there are only \n, \r and \\`, name[i])
		}
	}
	return b.String(), ""
}

// hexRun returns the number of hexadecimal digits at the beginning of s.
func hexRun(s string) int {
	for i := range len(s) {
		if c := s[i] | 0x20; (s[i] < '0' || s[i] > '9') && (c < 'a' || c > 'f') {
			return i
		}
	}
	return len(s)
}

// digestOf checks that a digest is valid for its algorithm: tag if the row has one, else wanted, else the one for the
// length of the digest.
func digestOf(tag, wanted, hex string) (alg, lower, reason string) {
	lower = strings.ToLower(strings.TrimSpace(hex))
	if hexRun(lower) != len(lower) {
		return "", "", fmt.Sprintf("%.80q is not a digest in hexadecimal", hex)
	}
	if alg = schemas.AlgorithmName(tag); alg == "" {
		if alg = schemas.AlgorithmName(wanted); alg == "" {
			alg = byLength(len(lower))
		}
	}
	switch n := schemas.HexLen(alg); {
	case alg == "":
		return "", "", fmt.Sprintf("no algorithm has digests of %d digits", len(lower))
	case n != 0 && n != len(lower), len(lower)%2 != 0, lower == "":
		return "", "", fmt.Sprintf("a digest of %d digits is not a %s", len(lower), alg)
	}
	return alg, lower, ""
}

// byLength returns the algorithm of checksum tools with digests of n hex digits.
func byLength(n int) string {
	for _, alg := range []string{digest.MD5, digest.SHA1, "sha224", digest.SHA256, "sha384", "sha512"} {
		if schemas.HexLen(alg) == n {
			return alg
		}
	}
	return ""
}
