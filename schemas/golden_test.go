package schemas_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/millrace/millrace/schemas"
)

// golden returns the files in testdata with messages of the type of e, without extensions. Files are added and never
// edited, because every version must read all older messages. A message with a new field gets a new file beside the old
// one (change.2.json, change.2.pb).
func golden(t testing.TB, e schemas.Entry) []string {
	t.Helper()
	var name strings.Builder
	for i, r := range string(e.New().ProtoReflect().Descriptor().Name()) {
		if unicode.IsUpper(r) && i > 0 {
			name.WriteByte('_')
		}
		name.WriteRune(unicode.ToLower(r))
	}
	files, err := filepath.Glob(filepath.Join("testdata", name.String()+".*json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden file of %s (%v)", name.String(), err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(f, ".json")
	}
	return files
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	return b
}

func contentType(value string) []schemas.Header {
	return []schemas.Header{{Key: schemas.HeaderContentType, Value: []byte(value)}}
}

func TestGolden(t *testing.T) {
	for _, e := range schemas.Catalogue() {
		if e.Raw {
			continue
		}
		seen := map[protoreflect.FullName]bool{}
		for _, file := range golden(t, e) {
			t.Run(string(e.Topic)+"/"+filepath.Base(file), func(t *testing.T) {
				fromJSON, err := schemas.Decode(e.Topic, contentType(schemas.ContentJSON), read(t, file+".json"))
				must(t, err)
				fromBinary, err := schemas.Decode(e.Topic, contentType(schemas.ContentProtobuf), read(t, file+".pb"))
				must(t, err)
				if !proto.Equal(fromJSON, fromBinary) {
					t.Errorf("JSON says %v, Protobuf says %v", fromJSON, fromBinary)
				}
				if len(fromBinary.ProtoReflect().GetUnknown()) > 0 {
					t.Error("Protobuf contains unknown fields")
				}
				r, err := schemas.Encode(schemas.Message{Topic: e.Topic, Body: fromBinary})
				must(t, err)
				again, err := schemas.Decode(r.Topic, r.Headers, r.Value)
				if err != nil || !proto.Equal(again, fromJSON) {
					t.Errorf("written and read: got %v (%v), want %v", again, err, fromJSON)
				}
				markSet(seen, fromJSON.ProtoReflect())
			})
		}
		for _, name := range unset(seen, e.New().ProtoReflect().Descriptor()) {
			t.Errorf("no golden file of %s sets %s: add one", e.Topic, name)
		}
	}
}

// markSet marks the fields that are set in m and in nested messages.
func markSet(seen map[protoreflect.FullName]bool, m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		seen[f.FullName()] = true
		switch {
		case f.IsMap() || f.Kind() != protoreflect.MessageKind:
		case f.IsList():
			for i := range v.List().Len() {
				markSet(seen, v.List().Get(i).Message())
			}
		default:
			markSet(seen, v.Message())
		}
		return true
	})
}

func unset(seen map[protoreflect.FullName]bool, d protoreflect.MessageDescriptor) (names []protoreflect.FullName) {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if !seen[f.FullName()] {
			names = append(names, f.FullName())
		}
		if f.Kind() == protoreflect.MessageKind && !f.IsMap() {
			names = append(names, unset(seen, f.Message())...)
		}
	}
	return names
}

func FuzzDecode(f *testing.F) {
	entries := schemas.Catalogue()
	for i, e := range entries {
		if e.Raw {
			continue
		}
		for _, file := range golden(f, e) {
			f.Add(i, schemas.ContentProtobuf, read(f, file+".pb"))
			f.Add(i, schemas.ContentJSON, read(f, file+".json"))
		}
	}
	f.Add(0, "text/plain", []byte("x"))
	f.Fuzz(func(t *testing.T, i int, content string, value []byte) {
		topic := entries[uint(i)%uint(len(entries))].Topic
		body, err := schemas.Decode(topic, contentType(content), value)
		if (body == nil) == (err == nil) {
			t.Fatalf("got %v and %v", body, err)
		}
		if err != nil {
			return
		}
		// A decoded message is valid and can be encoded, unless headers make it too large. It survives the round trip.
		if err := schemas.Validate(body); err != nil {
			t.Fatalf("a decoded message is invalid: %v", err)
		}
		r, err := schemas.Encode(schemas.Message{Topic: topic, Body: body})
		if err != nil {
			if len(value) < schemas.MaxBytes/4 {
				t.Fatal(err)
			}
			return
		}
		again, err := schemas.Decode(topic, r.Headers, r.Value)
		if err != nil || !proto.Equal(again, body) {
			t.Fatalf("got %v (%v), want %v", again, err, body)
		}
		// The generated code and the library give the same message.
		if content == schemas.ContentProtobuf {
			plain := entries[uint(i)%uint(len(entries))].New()
			if err := proto.Unmarshal(r.Value, plain); err != nil || !proto.Equal(plain, body) {
				t.Fatalf("got %v, the library reads %v (%v)", body, plain, err)
			}
		}
	})
}
