package schemas_test

import (
	"errors"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Each case makes one edit to a valid restore order.
func TestValidateRestoreOrder(t *testing.T) {
	for name, tt := range map[string]struct {
		edit  func(*pb.DuplicationCommand)
		field string // with the fault; empty if the order stays valid
	}{
		"as it was": {func(*pb.DuplicationCommand) {}, ""},
		"another reason": {func(c *pb.DuplicationCommand) { c.Reason = pb.DuplicationReason_DUPLICATION_REASON_MANUAL },
			"restore"},
		"no order":              {func(c *pb.DuplicationCommand) { c.Restore = nil }, "restore"},
		"about a space":         {func(c *pb.DuplicationCommand) { c.Item = "" }, "item"},
		"nobody ordered it":     {func(c *pb.DuplicationCommand) { c.Approved = "" }, "approved"},
		"no digests":            {func(c *pb.DuplicationCommand) { c.Restore.Digests = nil }, "restore.digests"},
		"a digest that is none": {func(c *pb.DuplicationCommand) { c.Restore.Digests["md5"] = "x" }, "restore.digests.md5"},
		"no sources":            {func(c *pb.DuplicationCommand) { c.Restore.Sources = nil }, "restore.sources"},
		"a source without a store": {func(c *pb.DuplicationCommand) { c.Restore.Sources[0].Store = "" },
			"restore.sources.store"},
		"of a lost item": {func(c *pb.DuplicationCommand) { c.Restore.Deleted = nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := restoreOrder(t)
			tt.edit(c)
			var got *schemas.DecodeError
			if err := schemas.Validate(c); tt.field == "" && err != nil ||
				tt.field != "" && (!errors.As(err, &got) || got.Field != tt.field) {
				t.Errorf("got %v, want field %q", err, tt.field)
			}
		})
	}
}

func restoreOrder(t *testing.T) *pb.DuplicationCommand {
	t.Helper()
	b, err := schemas.Decode(schemas.DuplicationLow, contentType(schemas.ContentJSON),
		read(t, "testdata/duplication_command.restore.json"))
	must(t, err)
	return b.(*pb.DuplicationCommand)
}

// The id of an order names the list or action and the copy, not where the bytes come from.
func TestRestoreID(t *testing.T) {
	c := restoreOrder(t)
	if got := schemas.RestoreID(c); got != c.GetId() {
		t.Errorf("got %s, want that of the golden file, %s", got, c.GetId())
	}
	c.SourceStore, c.Restore.Sources = "3", nil
	if got := schemas.RestoreID(c); got != c.GetId() {
		t.Error("it depends on the sources")
	}
	c.Cause = "another"
	if got := schemas.RestoreID(c); got == c.GetId() {
		t.Error("it does not depend on the cause")
	}
}
