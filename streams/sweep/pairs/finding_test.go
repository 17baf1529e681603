package pairs

import (
	"testing"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
)

var when = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// object returns an object of 7 bytes in a version, as f alters it.
func object(f func(*storage.Object)) *storage.Object {
	o := &storage.Object{Item: "a.jpg", Size: 7, Version: "v1", Modified: when}
	if f != nil {
		f(o)
	}
	return o
}

func sized(n int64) *storage.Object { return object(func(o *storage.Object) { o.Size = n }) }

func withDigest(alg, value string) *storage.Object {
	return object(func(o *storage.Object) { o.Digests = digest.Set{alg: value} })
}

func withType(mediaType string) *storage.Object {
	return object(func(o *storage.Object) { o.Properties.MediaType = mediaType })
}

// withProperty returns an object with one property and a media type.
func withProperty(name, value string) *storage.Object {
	return object(func(o *storage.Object) {
		o.Properties = storage.Properties{MediaType: "a/b", User: map[string]string{name: value}}
	})
}

// entryOf returns the entry of a source and a destination; nil: not listed.
func entryOf(source, destination *storage.Object) *entry {
	e := &entry{Key: "a.jpg", InFirst: source != nil, InSecond: destination != nil}
	if source != nil {
		e.First = *source
	}
	if destination != nil {
		e.Second = *destination
	}
	return e
}

func TestDecide(t *testing.T) {
	some := object(nil)
	unsizedDigest := func(value string) *storage.Object {
		return object(func(o *storage.Object) { o.Size, o.Digests = -1, digest.Set{"md5": value} })
	}
	other := object(func(o *storage.Object) { o.Version, o.Modified, o.ETag = "v2", when.Add(time.Hour), "e" })
	unknownProperties := object(func(o *storage.Object) { o.PropertiesUnknown = true })
	largerMD5 := object(func(o *storage.Object) { o.Size, o.Digests = 8, digest.Set{"md5": "aa"} })
	rules := func(r policy.Rules) criteria { return criteria{rules: r} }
	glob, minimum := rules(policy.Rules{Exclude: []string{"*.jpg"}}), rules(policy.Rules{MinSize: 8})
	maximum, start := rules(policy.Rules{MaxSize: 6}), rules(policy.Rules{Start: when.Add(1)})
	property, upper := withProperty("k", "1"), withProperty("K", "1")
	for name, tt := range map[string]struct {
		source, destination *storage.Object
		by                  criteria
		want                finding
	}{
		"excluded by a glob":               {some, nil, glob, excluded},
		"excluded, at both":                {some, sized(8), glob, excluded},
		"excluded, but deleted":            {nil, some, glob, extra},
		"too small, but deleted":           {nil, some, minimum, extra},
		"too large":                        {some, nil, maximum, excluded},
		"too small":                        {some, nil, minimum, excluded},
		"too old":                          {some, nil, start, excluded},
		"of unknown size, with limits":     {sized(-1), nil, minimum, missing},
		"missing":                          {some, nil, criteria{}, missing},
		"extra":                            {nil, some, criteria{}, extra},
		"sizes differ":                     {some, sized(8), criteria{}, different},
		"digests differ":                   {withDigest("md5", "aa"), withDigest("md5", "bb"), criteria{}, different},
		"sizes differ, digests do not":     {withDigest("md5", "aa"), largerMD5, criteria{}, different},
		"digests of unknown sizes differ":  {unsizedDigest("aa"), unsizedDigest("bb"), criteria{}, different},
		"the source's size unknown":        {sized(-1), some, criteria{}, unknown},
		"the destination's size unknown":   {some, sized(-1), criteria{}, unknown},
		"both sizes unknown":               {sized(-1), sized(-1), criteria{}, unknown},
		"sizes unknown, digests agree":     {unsizedDigest("aa"), unsizedDigest("aa"), criteria{}, equal},
		"media types differ":               {withType("a/b"), withType("a/c"), criteria{}, different},
		"properties differ":                {property, withProperty("k", "2"), criteria{}, different},
		"names of properties, by case":     {upper, property, criteria{}, different},
		"names of properties, case folded": {upper, property, criteria{foldCase: true}, equal},
		"properties of one side":           {property, some, criteria{}, equal},
		"properties unknown":               {property, unknownProperties, criteria{}, equal},
		"digests of other algorithms":      {withDigest("md5", "aa"), withDigest("sha256", "bb"), criteria{}, equal},
		"other version, time and ETag":     {some, other, criteria{}, equal},
		"equal":                            {some, some, criteria{}, equal},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.by.decide(entryOf(tt.source, tt.destination)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestSize(t *testing.T) {
	for name, tt := range map[string]struct {
		source, destination *storage.Object
		want                int64
	}{
		"source":                  {sized(3), sized(4), 3},
		"only source":             {sized(3), nil, 3},
		"only destination":        {nil, sized(4), 4},
		"source unknown":          {sized(-1), sized(4), 4},
		"destination unknown":     {sized(3), sized(-1), 3},
		"both unknown":            {sized(-1), sized(-1), 0},
		"only source, unknown":    {sized(-1), nil, 0},
		"only destination, empty": {nil, sized(0), 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := size(entryOf(tt.source, tt.destination)); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}
