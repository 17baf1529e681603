package s3

import "testing"

// ItemAt recognises the keys of items, with a prefix that ends in a slash or not.
func TestItemAt(t *testing.T) {
	one, each := Config{Bucket: "archive", Prefix: "m"}, Config{BucketPrefix: "acme-"}
	for name, tt := range map[string]struct {
		of          Config
		bucket, key string
		space, item string // both empty: not an item
		known       bool
	}{
		"an item": {one, "archive", "m/photos/2024/a b.jpg", "photos", "2024/a b.jpg", true},
		"a prefix with its slash": {Config{Bucket: "archive", Prefix: "m/"}, "archive", "m/photos/a", "photos", "a",
			true},
		"no prefix":                     {Config{Bucket: "archive"}, "archive", "photos/a", "photos", "a", true},
		"an escaped space":              {one, "archive", "m/%2Ehid%C3%A9%2Fx/a", ".hidé/x", "a", true},
		"a space not escaped as it is":  {one, "archive", "m/a b/c", "", "", true},
		"the driver's own":              {one, "archive", "m/.millrace/marker.json", "", "", true},
		"outside of the prefix":         {one, "archive", "photos/a", "", "", true},
		"in no space":                   {one, "archive", "m/a", "", "", true},
		"a space's own key":             {one, "archive", "m/photos/", "", "", true},
		"another bucket":                {one, "photos", "m/photos/a", "", "", false},
		"a bucket of a space":           {each, "acme-photos", "2024/a.jpg", "photos", "2024/a.jpg", true},
		"the driver's own bucket":       {each, "acme-millrace", ".millrace/marker.json", "", "", true},
		"a bucket of others":            {each, "photos", "a", "", "", false},
		"a bucket of nothing but that":  {each, "acme-", "a", "", "", false},
		"buckets without a prefix":      {Config{}, "photos", "a", "photos", "a", true},
		"an item that looks like space": {each, "acme-photos", ".millrace/x", "photos", ".millrace/x", true},
	} {
		t.Run(name, func(t *testing.T) {
			space, item, is, known := ItemAt(tt.of, tt.bucket, tt.key)
			if known != tt.known || is != (tt.item != "") || is && (space != tt.space || item != tt.item) {
				t.Errorf("got %q, %q, %v, %v, want %q, %q, %v", space, item, is, known, tt.space, tt.item, tt.known)
			}
		})
	}
}
