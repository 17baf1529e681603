package schemas_test

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Each case makes one edit to a valid Change.
func TestValidateChange(t *testing.T) {
	digest := func(alg, d string) func(*pb.Change) {
		return func(c *pb.Change) { c.Digests = map[string]string{alg: d} }
	}
	at := func(seconds int64, nanos int32) func(*pb.Change) {
		return func(c *pb.Change) { c.Time = &timestamppb.Timestamp{Seconds: seconds, Nanos: nanos} }
	}
	for name, tt := range map[string]struct {
		edit  func(*pb.Change)
		field string // with the fault; empty if the Change stays valid
	}{
		"as it was":                    {func(*pb.Change) {}, ""},
		"id missing":                   {func(c *pb.Change) { c.Id = "" }, "id"},
		"id short":                     {func(c *pb.Change) { c.Id = "1234" }, "id"},
		"id in upper case":             {func(c *pb.Change) { c.Id = strings.ToUpper(c.Id) }, "id"},
		"account missing":              {func(c *pb.Change) { c.Account = "" }, "account"},
		"account long":                 {func(c *pb.Change) { c.Account = strings.Repeat("a", 256) }, "account"},
		"store missing":                {func(c *pb.Change) { c.Store = "" }, "store"},
		"space missing":                {func(c *pb.Change) { c.Space = "" }, "space"},
		"space not UTF-8":              {func(c *pb.Change) { c.Space = "\xff" }, "space"},
		"item missing":                 {func(c *pb.Change) { c.Item = "" }, "item"},
		"item of 1,024 bytes":          {func(c *pb.Change) { c.Item = strings.Repeat("é", 512) }, ""},
		"item of 1,025 bytes":          {func(c *pb.Change) { c.Item = strings.Repeat("é", 512) + "x" }, "item"},
		"item not UTF-8":               {func(c *pb.Change) { c.Item = "a\xc3(" }, "item"},
		"item a half surrogate":        {func(c *pb.Change) { c.Item = "\xed\xa0\x80" }, "item"},
		"item of odd characters":       {func(c *pb.Change) { c.Item = "/../a b%\x00\n☂" }, ""},
		"source item long":             {func(c *pb.Change) { c.SourceItem = strings.Repeat("a", 1025) }, "source_item"},
		"op missing":                   {func(c *pb.Change) { c.Op = 0 }, "op"},
		"op unknown":                   {func(c *pb.Change) { c.Op = 11 }, "op"},
		"op negative":                  {func(c *pb.Change) { c.Op = -1 }, "op"},
		"op of a space, with an item":  {func(c *pb.Change) { c.Op = pb.Op_OP_SET_ACL }, "item"},
		"op of a space":                {func(c *pb.Change) { c.Op, c.Item = pb.Op_OP_DELETE_SPACE, "" }, ""},
		"origin unknown":               {func(c *pb.Change) { c.Origin = 64 }, "origin"},
		"size 0":                       {func(c *pb.Change) { c.Size = 0 }, ""},
		"size negative":                {func(c *pb.Change) { c.Size = -1 }, "size"},
		"user not UTF-8":               {func(c *pb.Change) { c.User = "\xff" }, "user"},
		"property not UTF-8":           {func(c *pb.Change) { c.Properties["a"] = "\xff" }, "properties.value"},
		"property's name not UTF-8":    {func(c *pb.Change) { c.Properties["\xff"] = "a" }, "properties.key"},
		"time missing":                 {func(c *pb.Change) { c.Time = nil }, "time"},
		"time 1970":                    {at(0, 0), ""},
		"time before 1970":             {at(-1, 999), "time"},
		"time at the end of 2261":      {at(9_214_646_399, 999_999_999), ""},
		"time 2262":                    {at(9_214_646_400, 0), "time"},
		"time's nanoseconds over 10^9": {at(1, 1_000_000_000), "time"},
		"time's nanoseconds negative":  {at(1, -1), "time"},
		"source time out of range": {func(c *pb.Change) { c.SourceTime = &timestamppb.Timestamp{Seconds: -1} },
			"source_time"},
		"no digests":                 {func(c *pb.Change) { c.Digests = nil }, ""},
		"md5 short":                  {digest("md5", "d41d8cd98f00b204"), "digests.md5"},
		"md5 in upper case":          {digest("md5", "D41D8CD98F00B204E9800998ECF8427E"), "digests.md5"},
		"md5 of a multipart ETag":    {digest("md5", "d41d8cd98f00b204e9800998ecf8427e-2"), "digests.md5"},
		"sha1":                       {digest("sha1", strings.Repeat("09af", 10)), ""},
		"sha1 long":                  {digest("sha1", strings.Repeat("09af", 11)), "digests.sha1"},
		"sha256 empty":               {digest("sha256", ""), "digests.sha256"},
		"sha512":                     {digest("sha512", strings.Repeat("0", 128)), ""},
		"crc64nvme in base64":        {digest("crc64nvme", "rosUhgp5mIg="), "digests.crc64nvme"},
		"unknown algorithm":          {digest("blake3", "00ff"), ""},
		"unknown algorithm, not hex": {digest("blake3", "g"), "digests.blake3"},
		"unknown algorithm, odd":     {digest("adler32", "2de01a6"), "digests.adler32"},
		"SHA-256":                    {digest("SHA-256", strings.Repeat("0", 64)), "digests.SHA-256"},
		"MD5":                        {digest("MD5", strings.Repeat("0", 32)), "digests.MD5"},
		"Blake3":                     {digest("Blake3", "00ff"), "digests.Blake3"},
		"sha384 short":               {digest("sha384", "00ff"), "digests.sha384"},
		"algorithm with a mark":      {digest("blake3?", "00ff"), "digests"},
		"algorithm without a name":   {digest("", "00"), "digests"},
	} {
		t.Run(name, func(t *testing.T) {
			c := change()
			tt.edit(c)
			var validated, encoded *schemas.DecodeError
			if err := schemas.Validate(c); (err == nil) != (tt.field == "") || err != nil && !errors.As(err, &validated) {
				t.Fatalf("validate: got %v, want one about %q", err, tt.field)
			}
			if _, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: c}); err != nil &&
				!errors.As(err, &encoded) {
				t.Fatalf("encode: got %v", err)
			}
			if tt.field != "" && (validated.Field != tt.field || encoded == nil || encoded.Field != tt.field) {
				t.Fatalf("got %v and %v, want both about %s", validated, encoded, tt.field)
			}
			value, err := c.MarshalVT()
			must(t, err)
			if c.Id == "" {
				tt.field = "" // Decode computes the id
			}
			body, err := schemas.Decode(schemas.Changes, nil, value)
			wantFault(t, body, err, tt.field)
		})
	}
}

// Numbers that the generated code would truncate are rejected.
func TestValidateCutShort(t *testing.T) {
	value, err := proto.Marshal(&pb.FixityTask{
		Id: schemas.ID("a"), Account: "acme", Store: "1", Space: "s", Item: "i", Reason: pb.FixityReason_FIXITY_REASON_SWEEP,
	})
	must(t, err)
	if _, err := schemas.Decode(schemas.FixityLow, nil, value); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		field protowire.Number
		value uint64
		want  string
	}{
		"recheck of 2^32+1":     {11, 1<<32 + 1, "recheck"},
		"recheck negative":      {11, 1<<64 - 1, "recheck"},
		"reason of 2^32+1":      {6, 1<<32 + 1, "reason"},
		"text as a number":      {2, 1, "account"},
		"last time as a number": {14, 1, "first"},
	} {
		t.Run(name, func(t *testing.T) {
			value := protowire.AppendVarint(protowire.AppendTag(value[:len(value):len(value)], tt.field, protowire.VarintType),
				tt.value)
			_, err := schemas.Decode(schemas.FixityLow, nil, value)
			var de *schemas.DecodeError
			if !errors.As(err, &de) || de.Field != tt.want {
				t.Errorf("got %v, want one about %s", err, tt.want)
			}
		})
	}
}

// Faults in nested messages have the full path.
func TestValidateNested(t *testing.T) {
	task := &pb.FixityTask{
		Id: schemas.ID("a"), Account: "acme", Store: "1", Space: "s", Item: "i", Reason: pb.FixityReason_FIXITY_REASON_SWEEP,
		Known: &pb.CopyRecord{Audit: &pb.Record{Digests: map[string]string{"md5": "xyz"}}},
	}
	var de *schemas.DecodeError
	if err := schemas.Validate(task); !errors.As(err, &de) || de.Field != "known.audit.digests.md5" {
		t.Errorf("got %v", err)
	}
}

// The rows of the decision table of checks are 1 to 16.
func TestValidateRow(t *testing.T) {
	for row, want := range map[int32]bool{0: true, 1: true, 16: true, 17: false, -1: false} {
		err := schemas.Validate(&pb.FixityResult{
			Id: schemas.ID("a"), Account: "acme", Store: "1", Space: "s", Item: "i", Verdict: pb.Verdict_VERDICT_FAIL, Row: row,
			Started: timestamppb.Now(), Finished: timestamppb.Now(),
		})
		var fault *schemas.DecodeError
		if errors.As(err, &fault); (err == nil) != want || fault != nil && fault.Field != "row" {
			t.Errorf("row %d: %v", row, err)
		}
	}
}

// Every empty message is invalid, because it lacks an id.
func TestValidateEmpty(t *testing.T) {
	for _, e := range schemas.Catalogue() {
		if e.Raw {
			continue
		}
		t.Run(string(e.Topic), func(t *testing.T) {
			var de *schemas.DecodeError
			if err := schemas.Validate(e.New()); !errors.As(err, &de) || de.Field != "id" {
				t.Errorf("got %v, want one about id", err)
			}
		})
	}
}
