
 9b277419c5537aaaab1903f692298f18acmephotos"2020/Ã©tÃ©/ 100% â˜‚.jpg*122: c06e8a2ead46bc448510ef7d394bf88dB db54f908f9372f96125d4984c0832aaeJè˜àÏÀ¨¥RS
1777862521987000000-12345""d41d8cd98f00b204e9800998ecf8427e"„™àÏÀº™ Ž€€€€ `h‘€€€€ r§™àÏ€ÑÊzeve@example.org‚brake-1Â 5d1ae0d7c4e5b1a9f0cc3d2a7b64e011