
 bc4ce14e822d658b2adb409597a3ffc4 7187f372af830b448ef153e9b79acb66 9386ea84e455c60b830437ea29a007dc"acme*photos22020/Ã©tÃ©/ 100% â˜‚.jpg:1B2HRC7Zawaiting-approval`h€€€€ rJ
sha256@ccb688a6e3f9aac74adb244ee8189e874196b97b22b478607174bbbe89947262r'
md5 ccb688a6e3f9aac74adb244ee8189e87z’™àÏÀÃ“‚™™àÏ€ÈĞˆ’	transientšwrite: connection reset¢on the second readingª¼™àÏÀŞ
°ºcopier-3Ânode-1Êmillrace 0.1.0Ò#acme/2/photos/a.jpg/content-corruptÚbrake-1ª 5d1ae0d7c4e5b1a9f0cc3d2a7b64e011