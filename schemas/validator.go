package schemas

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Bounds of the fields of messages.
const (
	MaxItemBytes = 1024 // length of an item's name in bytes of UTF-8
	MaxNameBytes = 255  // length of the name of an account, store or space

	// Times are in seconds. ClickHouse holds later ones, but its drivers count nanoseconds in 64 bits.
	minTime = 0             // 1970-01-01
	maxTime = 9_214_646_399 // 2261-12-31T23:59:59Z

	// Dates of files, which order nothing, may be as protobuf allows.
	minDate = -62_135_596_800 // 0001-01-01
	maxDate = 253_402_300_799 // 9999-12-31T23:59:59Z
)

// ClampTime returns the time nearest to t that messages carry; the zero time, which none does, if t is zero.
func ClampTime(t time.Time) time.Time {
	switch s := t.Unix(); {
	case s < minTime && !t.IsZero():
		return time.Unix(minTime, 0).UTC()
	case s > maxTime:
		return time.Unix(maxTime, 0).UTC()
	}
	return t
}

// A fault is a DecodeError without its topic.
type fault struct{ field, reason string }

func (f *fault) in(t Topic) *DecodeError { return &DecodeError{t, f.field, f.reason} }

func (f *fault) under(field string) *fault {
	if f.field != "" {
		field += "." + f.field
	}
	return &fault{field, f.reason}
}

// A validator checks the encoded form of one message type. In one pass over the bytes it finds values that the
// generated code accepts but must not be accepted: strings that are not UTF-8, numbers that would be truncated, and
// values out of range. Rules follow from the type and name of a field, so that new fields have them too. Fields without
// a rule may have any value.
type validator struct {
	fields []fieldRule // at index field number - 1; kindUnknown if no field has the number
}

type fieldRule struct {
	kind kind
	wire protowire.Type
	max  int    // largest length of a text in bytes
	low  int64  // smallest number
	high int64  // largest number
	enum uint64 // set of known values, one bit each
	sub  *validator
	name string
}

type kind uint8

const (
	kindUnknown kind = iota // no field has this number
	kindAny
	kindText
	kindID
	kindNumber
	kindEnum
	kindMessage
	kindTime
	kindDigests
)

func newValidator(d protoreflect.MessageDescriptor) *validator {
	s := new(validator)
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		for len(s.fields) < int(f.Number()) {
			s.fields = append(s.fields, fieldRule{})
		}
		s.fields[f.Number()-1] = ruleOf(f)
	}
	return s
}

func ruleOf(f protoreflect.FieldDescriptor) fieldRule {
	r := fieldRule{name: string(f.Name()), kind: kindAny, low: math.MinInt64, high: math.MaxInt64}
	switch f.Kind() {
	case protoreflect.StringKind:
		r.wire, r.kind, r.max = protowire.BytesType, kindText, maxText(r.name)
		if r.name == "id" {
			r.kind = kindID
		}
	case protoreflect.BytesKind:
		r.wire = protowire.BytesType
	case protoreflect.BoolKind:
		r.wire = protowire.VarintType
	case protoreflect.Int32Kind:
		// Counts, rows and attempts are never negative.
		r.wire, r.kind, r.low, r.high = protowire.VarintType, kindNumber, 0, math.MaxInt32
		switch r.name {
		case "row":
			r.high = 16
		case "evidence_level":
			r.high = 4
		}
	case protoreflect.Int64Kind:
		r.wire, r.kind, r.low = protowire.VarintType, kindNumber, 0
	case protoreflect.EnumKind:
		r.wire, r.kind = protowire.VarintType, kindEnum
		for i := range f.Enum().Values().Len() {
			r.enum |= 1 << f.Enum().Values().Get(i).Number()
		}
	case protoreflect.MessageKind:
		r.wire, r.kind = protowire.BytesType, kindMessage
		switch {
		case f.Message().FullName() == "google.protobuf.Timestamp":
			r.kind, r.low, r.high = kindTime, minTime, maxTime
			if f.FullName() == "millrace.v1.Change.modified" { // data, which orders nothing
				r.low, r.high = minDate, maxDate
			}
		case f.IsMap() && isDigests(r.name):
			r.kind = kindDigests
		default:
			r.sub = newValidator(f.Message())
		}
	default:
		panic("schemas: no rule for the type of field " + string(f.FullName())) // every test would find it
	}
	return r
}

func maxText(field string) int {
	switch field {
	case "item", "source_item":
		return MaxItemBytes
	case "account", "store", "space", "source_store", "destination_store", "source_space":
		return MaxNameBytes
	}
	return MaxBytes
}

func isDigests(field string) bool {
	return field == "digests" || field == "expected" || field == "found" || field == "claims"
}

// check returns the first fault of an encoded message; nil if there is none. It rejects all bytes that the generated
// code cannot decode.
func (s *validator) check(b []byte) *fault {
	for len(b) > 0 {
		tag, n := uint64(b[0]), 1
		if tag >= 0x80 {
			if tag, n = protowire.ConsumeVarint(b); n < 0 {
				return &fault{reason: "is truncated or corrupt"}
			}
		}
		b = b[n:]
		num, wire := protowire.Number(tag>>3), protowire.Type(tag&7)
		if tag>>3 == 0 || tag>>3 > uint64(protowire.MaxValidNumber) {
			return &fault{reason: fmt.Sprintf("is corrupt: there is no field number %d", tag>>3)}
		}
		if int(num) > len(s.fields) || s.fields[num-1].kind == kindUnknown {
			if n = protowire.ConsumeFieldValue(num, wire, b); n < 0 {
				return &fault{reason: fmt.Sprintf("field number %d is truncated or corrupt", num)}
			}
			b = b[n:]
			continue
		}
		r := &s.fields[num-1]
		if wire != r.wire {
			return &fault{r.name, fmt.Sprintf("has wire type %d, want %d", wire, r.wire)}
		}
		var v uint64
		if len(b) > 0 && b[0] < 0x80 {
			v, n = uint64(b[0]), 1
		} else if v, n = protowire.ConsumeVarint(b); n < 0 {
			return &fault{r.name, "is truncated or corrupt"}
		}
		b = b[n:]
		var f *fault
		if wire == protowire.VarintType {
			f = r.checkNumber(int64(v))
		} else {
			if v > uint64(len(b)) {
				return &fault{r.name, "is truncated or corrupt"}
			}
			value := b[:v]
			b = b[v:]
			if r.kind == kindText && len(value) <= r.max && isASCII(value) {
				continue // fast path for most fields
			}
			f = r.checkBytes(value)
		}
		if f != nil {
			return f.under(r.name)
		}
	}
	return nil
}

func varint(b []byte) (uint64, int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	return protowire.ConsumeVarint(b)
}

func (r *fieldRule) checkNumber(v int64) *fault {
	switch {
	case r.kind == kindEnum && (v < 0 || v > 63 || r.enum>>v&1 == 0):
		return &fault{reason: fmt.Sprintf("value %d is unknown", v)}
	case r.kind == kindNumber && (v < r.low || v > r.high):
		return &fault{reason: fmt.Sprintf("%d is out of range, want %d to %d", v, r.low, r.high)}
	}
	return nil
}

func (r *fieldRule) checkBytes(b []byte) *fault {
	switch r.kind {
	case kindText:
		if len(b) > r.max {
			return &fault{reason: fmt.Sprintf("has %d bytes, at most %d", len(b), r.max)}
		}
		return checkText(b)
	case kindID:
		if len(b) != 0 && (len(b) != 32 || !isHex(b)) {
			return &fault{reason: fmt.Sprintf("%.80q is not 128 bits in lower-case hex", b)}
		}
	case kindTime:
		return r.checkTime(b)
	case kindDigests:
		return checkDigest(b)
	case kindMessage:
		return r.sub.check(b)
	case kindUnknown, kindAny, kindNumber, kindEnum:
	}
	return nil
}

func checkText(b []byte) *fault {
	if !isASCII(b) && !utf8.Valid(b) {
		return &fault{reason: fmt.Sprintf("%.80q is not UTF-8", b)}
	}
	return nil
}

// checkTime checks an encoded Timestamp.
func (r *fieldRule) checkTime(b []byte) *fault {
	var parts [3]int64 // seconds and nanoseconds, by field number
	for len(b) > 0 {
		tag, n := varint(b)
		if n < 0 {
			return &fault{reason: "is truncated or corrupt"}
		}
		b = b[n:]
		if tag != 1<<3 && tag != 2<<3 {
			return &fault{reason: "is not a time"}
		}
		v, n := varint(b)
		if n < 0 {
			return &fault{reason: "is truncated or corrupt"}
		}
		b, parts[tag>>3] = b[n:], int64(v)
	}
	if s, ns := parts[1], parts[2]; s < r.low || s > r.high || ns < 0 || ns > 999_999_999 {
		return &fault{reason: fmt.Sprintf("%d s and %d ns after 1970 is out of range, want the years %d to %d", s, ns,
			time.Unix(r.low, 0).UTC().Year(), time.Unix(r.high, 0).UTC().Year())}
	}
	return nil
}

// checkDigest checks an encoded entry of a map from algorithm to digest.
func checkDigest(b []byte) *fault {
	alg, d, f := readPair(b)
	if f != nil {
		return f
	}
	if len(alg) == 0 || len(alg) > 32 || bytes.IndexByte(alg, '?') >= 0 { // copy_state has claims under this mark
		return &fault{reason: fmt.Sprintf("%.80q is not the name of an algorithm", alg)}
	}
	if f := checkText(alg); f != nil {
		return f
	}
	if !isHex(d) || len(d) == 0 {
		return &fault{string(alg), fmt.Sprintf("%.80q is not lower-case hex", d)}
	}
	switch want := HexLen(string(alg)); {
	case want == 0 && AlgorithmName(string(alg)) != string(alg):
		return &fault{string(alg), fmt.Sprintf("is not the name of the algorithm, which is %q", AlgorithmName(string(alg)))}
	case want != 0 && want != len(d):
		return &fault{string(alg), fmt.Sprintf("has %d digits, want %d", len(d), want)}
	case len(d)%2 != 0:
		return &fault{string(alg), fmt.Sprintf("has %d digits, an odd number", len(d))}
	}
	return nil
}

// readPair decodes an entry of a map from string to string.
func readPair(b []byte) (key, value []byte, f *fault) {
	const keyTag, valueTag = 1<<3 | 2, 2<<3 | 2
	if len(b) > 4 && b[0] == keyTag && b[1] < 0x80 {
		// Fast path: key, then value, with lengths of one byte, as all encoders write it.
		k := 2 + int(b[1])
		if k+2 <= len(b) && b[k] == valueTag && b[k+1] < 0x80 && k+2+int(b[k+1]) == len(b) {
			return b[2:k], b[k+2:], nil
		}
	}
	for len(b) > 0 {
		tag, n := varint(b)
		if n < 0 || tag != keyTag && tag != valueTag {
			return nil, nil, &fault{reason: "is not an entry of algorithm and digest"}
		}
		b = b[n:]
		v, n := varint(b)
		if n < 0 || v > uint64(len(b)-n) {
			return nil, nil, &fault{reason: "is truncated or corrupt"}
		}
		part := b[n : n+int(v)]
		b = b[n+int(v):]
		if tag == keyTag {
			key = part
		} else {
			value = part
		}
	}
	return key, value, nil
}

// highBits has the high bit of each of eight bytes set.
const highBits = 0x8080808080808080

// isASCII reports whether b is ASCII, as most texts are. It reads eight bytes at a time; the last eight may overlap
// those before.
func isASCII(b []byte) bool {
	var all uint64
	if len(b) < 8 {
		for _, c := range b {
			all |= uint64(c)
		}
		return all&highBits == 0
	}
	for i := 0; i <= len(b)-8; i += 8 {
		all |= binary.LittleEndian.Uint64(b[i:])
	}
	all |= binary.LittleEndian.Uint64(b[len(b)-8:])
	return all&highBits == 0
}

// isHex reports whether b is lower-case hex. Digests are the largest part of most messages, so it reads eight bytes at
// a time: adding 0x80-c to a byte below 0x80 sets its high bit if the byte is at least c.
func isHex(b []byte) bool {
	const each = 0x0101010101010101
	for len(b) >= 8 {
		x := binary.LittleEndian.Uint64(b)
		digit := (x + each*(0x80-'0')) &^ (x + each*(0x80-'9'-1))
		letter := (x + each*(0x80-'a')) &^ (x + each*(0x80-'f'-1))
		if (digit|letter)&^x&highBits != highBits {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
