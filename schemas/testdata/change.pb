
 5be579a8c943b327d3ed0a59453653eaacme"2*photos22020/Ã©tÃ©/ 100% â˜‚.jpg:incomingBimg_0001.jpgJ1777862521987000000-12345R""d41d8cd98f00b204e9800998ecf8427e"X‹€€€€ b'
md5 ab9503789e4af0669bcea10bc79d1ff7bJ
sha256@ab9503789e4af0669bcea10bc79d1ff75e49e0bbb12e9228da391e3980b7a5e5hr
image/jpegz
creatorsomeonez
titleÃœber alles‚
readersreadŠ ™àÏÀÌ’42šann¢emit¨² 8bafa1f7acbd86688c3cc66103b19655ºÊ™àÏÀçû
Â1777862500000000000-12345ÊbobÒ.
stored$md5:51b5c602162fa007277e0d11ad6fff77