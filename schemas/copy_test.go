package schemas_test

import (
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func TestCopies(t *testing.T) {
	at := func(store, item string) schemas.Copy {
		return schemas.Copy{Account: "acme", Store: store, Space: "photos", Item: item}
	}
	source, destination := schemas.CopiesOf(&pb.DuplicationCommand{
		Account: "acme", Space: "photos", Item: "a/b", SourceStore: "1", DestinationStore: "2",
	})
	for name, tt := range map[string]struct{ got, want schemas.Copy }{
		"of a change": {schemas.CopyOf(&pb.Change{Account: "acme", Store: "1", Space: "photos", Item: "a/b"}),
			at("1", "a/b")},
		"source":        {source, at("1", "a/b")},
		"destination":   {destination, at("2", "a/b")},
		"another store": {source.In("3"), at("3", "a/b")},
		"space":         {source.WithoutItem(), at("1", "")},
		"unchanged":     {source, at("1", "a/b")},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %s, want %s", name, tt.got, tt.want)
		}
	}
	if got, want := source.String(), "acme/1/photos/a%2Fb"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
