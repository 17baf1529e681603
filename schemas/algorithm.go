package schemas

import "strings"

// AlgorithmName returns the name under which messages have digests of an algorithm: SHA-256, SHA2-256 and sha256 are
// the same. Messages with another spelling are malformed, so that digests of one algorithm are always compared.
func AlgorithmName(name string) string {
	name = strings.ToLower(strings.TrimSpace(name))
	plain := strings.NewReplacer("-", "", "_", "", " ", "").Replace(name)
	switch plain {
	case "md5", "sha1", "sha224", "sha256", "sha384", "sha512", "crc32", "crc32c", "crc64nvme":
		return plain
	case "sha2256":
		return "sha256"
	case "sha2384":
		return "sha384"
	case "sha2512":
		return "sha512"
	case "blake2b", "blake2b512":
		return "blake2b-512"
	}
	return name
}

// HexLen returns the number of hex digits of a digest of the algorithm; 0 if the algorithm is unknown.
func HexLen(algorithm string) int {
	switch algorithm {
	case "crc32", "crc32c":
		return 8
	case "crc64nvme":
		return 16
	case "md5":
		return 32
	case "sha1":
		return 40
	case "sha224":
		return 56
	case "sha256":
		return 64
	case "sha384":
		return 96
	case "sha512", "blake2b-512":
		return 128
	}
	return 0
}
