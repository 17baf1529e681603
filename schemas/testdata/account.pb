
 ab3832d631eb7a583918cda2a9e4a120acmeƒ€€€€ "Q{"id": "acme", "stores": [{"id": "1", "driver": "file", "root": "/srv/archive"}]}(2ann:	asked forBá˜àÏ€¤èJcli