
 827bf6d7c38b1bfee40a3ed5240e49d5acme2"photos*2020/Ã©tÃ©/ 100% â˜‚.jpg2content-corrupt8Bá˜àÏ€¤èJè˜àÏÀ¨¥Rï˜àÏ€­âZö˜àÏÀ±Ÿ`j'
md5 64ccabc0235ab2de3a26d9002272b313jJ
sha256@64ccabc0235ab2de3a26d9002272b3138403a3891cf109c1ed7a31cfdb5de1c6r'
md5 ba0db2dea5ea1f1c759bbfa157cfd964rJ
sha256@ba0db2dea5ea1f1c759bbfa157cfd9643c9f09dab5fdbbff93225b686f9dd399z]
1777862521987000000-12345""d41d8cd98f00b204e9800998ecf8427e"§™àÏ€ÑÊ “€€€€ ( İà°Šıf€š[
Ñ™àÏ€ì¸approve-repair a29c644bee39693d18938002f8724ddd"ann*on the second readingš[
ô™àÏÀ‚êapprove-repair a29c644bee39693d18938002f8724ddd"ann*on the second reading