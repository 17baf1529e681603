
 147b2ba2092b4cca7ebaf57ca1a85ca5 2ec81f1926c9d97571e9c6bd0494bad4 3ac1355e9835179a77d8d49cb5ac0fa9"acme*22photos:2020/Ã©tÃ©/ 100% â˜‚.jpgBfileHP	Xbcontent-corrupthpzy'
md5 9eac9b46049dd635712d8f1627543c17J
sha256@9eac9b46049dd635712d8f1627543c17718cc82fce311129c3cef21666e4cd01‚y'
md5 e8add8831de8567eb97f59df6ffc6fccJ
sha256@e8add8831de8567eb97f59df6ffc6fccd897bab6f9153e47dbf9f552dc74b3d1Šy'
md5 3c4c66fa82e3d4b5147ab0456b5a86a7J
sha256@3c4c66fa82e3d4b5147ab0456b5a86a703e4ad8c8fb16a6b7639272490ac64dd’y'
md5 fd59a48115c64cf2ae17067f8b36431bJ
sha256@fd59a48115c64cf2ae17067f8b36431bfb7a4a38d168aa34c33d531540591cb2˜Ÿ€€€€  ¨²copier-3ºnode-1Âmillrace 0.1.0Ê2026-05Ò³šàÏ€«ÚºšàÏÀ¯Ìâon the second readingê]
1777862521987000000-12345""d41d8cd98f00b204e9800998ecf8427e"İšàÏ€Æı ­€€€€ ( İà°ŠıfòëšàÏ€Ï÷úy'
md5 d245fa35ca3b0318d9c12c0a3a6adb7bJ
sha256@d245fa35ca3b0318d9c12c0a3a6adb7be08a7e0de86462cdb18be09ecebb2600€ˆ